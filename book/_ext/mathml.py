"""Draws formulas while the book is built: LaTeX becomes MathML, which browsers show by themselves.

`autograder.lesson.mathml` converts. A formula that cannot be converted causes a warning, which stops the build.

`math.css` holds the font; only pages with formulas load it. They ask for the font in their head: a browser that first
meets it in a formula decodes it after the first paint, and then lays out every line with a formula again. A font in a
file of its own, preloaded, does as well on a server, but not from disk.
"""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

from autograder.lesson.mathml import mathml

VENDOR = Path(__file__).resolve().parent.parent / "_vendor"
FONT = VENDOR / "stix" / "stix-two-math-subset.woff2"
#: What the font has, as ranges of code points: see `book/_vendor/README.md`.
COVERED = re.compile(
    "[\\s\\u0020-\\u017f\\u02b0-\\u03ff\\u2000-\\u206f\\u2100-\\u22ff\\u2308-\\u230b\\u23de\\u23df\\u25a0-\\u25ff"
    "\\u27e0-\\u27ff\\u2a00-\\u2a06\\u2a7d\\u2a7e\\U0001d400-\\U0001d4cf\\U0001d538-\\U0001d56b\\U0001d670-\\U0001d755\\U0001d7ce-\\U0001d7ff]*"
)
#: The name of the style sheet with the font.
STYLE = "math.css"
ASK_FOR_FONT = """document.fonts.load('1em "STIX Two Math"')"""


def _drawn(node: nodes.Element, display: bool) -> str:
    latex = node.astext().strip()
    try:
        return _covered(mathml(latex, display))
    except ValueError as error:
        logging.getLogger(__name__).warning("%s: %s", latex, error, location=node)
        return ""


def _covered(drawn: str) -> str:
    """A formula all of whose signs are in the font. ValueError, which names a sign that is not."""
    signs = html.unescape(re.sub(r"<[^>]*>", "", drawn))
    end = COVERED.match(signs).end()
    if end < len(signs):
        raise ValueError(f"the font of the formulas lacks {signs[end]!r}: see book/_vendor/README.md")
    return drawn


def visit_inline(translator: Any, node: nodes.math) -> None:
    """A formula within a line."""
    translator.body.append(f'<span class="math">{_drawn(node, display=False)}</span>')
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    """A formula on a line of its own, with its number if it has one."""
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    translator.body.append(_drawn(node, display=True))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def load(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give pages with formulas the font."""
    if "<math" in (context.get("body") or ""):
        app.add_css_file(STYLE)
        app.add_js_file(None, body=ASK_FOR_FONT)


def write(app: Any, exception: Exception | None) -> None:
    """Write the style sheet with the font in it."""
    if not exception and app.builder.format == "html":
        font = base64.b64encode(FONT.read_bytes()).decode()
        face = f'@font-face {{ font-family: "STIX Two Math"; src: url("data:font/woff2;base64,{font}"); }}\n'
        Path(app.outdir, "_static", STYLE).write_text(face, encoding="utf-8")


def setup(app: Any) -> dict[str, Any]:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None))
    app.connect("html-page-context", load)
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
