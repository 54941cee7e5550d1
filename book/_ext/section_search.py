"""The search page finds sections, with the passage that fits, also when the book is opened from disk.

Sphinx's own search knows words and pages; the passages it would have to fetch, which a page from disk may not. So the
texts of all sections are written into one script, `_static/sections.js`, which only the search page loads, together
with `search-sections.js`, which looks through them. They are packed (gzip, in base64), and the browser unpacks them.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes

#: What is not searched: displayed formulas, and what cells printed as pictures or pages.
SILENT = (nodes.math_block, nodes.raw, nodes.image, nodes.comment)
#: Pages that only list what the chapters say; a search finds it there.
LISTS = ("book/reference/index-of-terms", "book/reference/theorems")
#: A formula that can be read as it is written, such as N or 2N; others become three dots.
READABLE = re.compile(r"[\w+\-=<>/,.() ]{1,12}")


def sections(doctree: nodes.document) -> list[tuple[str, str, str]]:
    """(anchor, title, text) of each section, without the sections in it, in the order of the page."""
    found = []
    for section in doctree.findall(nodes.section):
        title = next((node.astext() for node in section if isinstance(node, nodes.title)), "")
        if title:
            found.append((section["ids"][0], title, _text(section)))
    return found


def _text(section: nodes.section) -> str:
    """The words of a section in one line."""
    words: list[str] = []

    def take(node: nodes.Node) -> None:
        if isinstance(node, nodes.Text):
            words.append(str(node))
        elif isinstance(node, nodes.math):
            words.append(node.astext() if READABLE.fullmatch(node.astext()) else "…")
        elif not (isinstance(node, (*SILENT, nodes.title)) or _is_a_file(node)):
            # A section without a title of its own, as in a proof, belongs to the one around it.
            for child in node.children:
                if not (isinstance(child, nodes.section) and any(isinstance(one, nodes.title) for one in child)):
                    take(child)
            words.append(" " if isinstance(node, (nodes.TextElement, nodes.entry)) and _is_block(node) else "")

    for child in section.children:
        if not isinstance(child, (nodes.title, nodes.section)):
            take(child)
    return re.sub(r"\s+", " ", "".join(words)).strip()


def _is_a_file(node: nodes.Node) -> bool:
    """Is this a file that the page prints as it is (`literalinclude`)? The text around it says what it is."""
    return isinstance(node, nodes.literal_block) and bool(node.get("source"))


def _is_block(node: nodes.Node) -> bool:
    return not isinstance(node, nodes.Inline)


def collect(app: Any, doctree: nodes.document, docname: str) -> None:
    """Remember the sections of a page."""
    if app.builder.format == "html":
        app.sections_of[docname] = sections(doctree)


def write(app: Any, exception: Exception | None) -> None:
    """Write the sections of all pages: [address, name of the page, title, text] each."""
    if exception or app.builder.format != "html":
        return
    rows = []
    for docname in sorted(app.sections_of.keys() - set(LISTS)):
        own = app.sections_of[docname]
        page = _name(docname, own[0][1] if own else docname)
        rows += [[f"{app.builder.get_target_uri(docname)}#{anchor}", page, *rest] for anchor, *rest in own]
    place = Path(app.outdir, "_static", "sections.js")
    packed = gzip.compress(json.dumps(rows, ensure_ascii=False).encode(), mtime=0)
    place.write_text(f'window.bookSections = "{base64.b64encode(packed).decode()}";\n', encoding="utf-8")


def _name(docname: str, title: str) -> str:
    """05 · DistributedDataParallel, or Assignment 05, or the page's title."""
    number = re.fullmatch(r"(book|notebooks/\d\d_\w+)/(\d\d)_\w+", docname)
    if number is None:
        return title
    return f"{number[2]} · {title}" if number[1] == "book" else f"Assignment {number[2]}"


def load(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give the search page its scripts."""
    if pagename == "search":
        for script in ("sections.js", "search-sections.js"):
            app.add_js_file(script, loading_method="defer")


def setup(app: Any) -> dict[str, Any]:
    """Collect while pages are written, and write at the end."""
    app.sections_of = {}
    app.connect("doctree-resolved", collect)
    app.connect("html-page-context", load)
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
