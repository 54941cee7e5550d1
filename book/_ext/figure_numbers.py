"""Numbers the figures of each chapter and captions them: Figure 9.3 is the third one of chapter 09.

Pictures that a cell draws and figures that move count alike, in the order of the page. Each becomes a `figure` whose
number is a link to itself, `#figure-9-3`. The caption of a figure that moves is the `CAPTION` of its module. That of a
picture is what its cell says with the option `:caption:`; else the title that the cell's code gives it, if there is
exactly one; else the first sentence of the text alternative, or its first clause if there is only one sentence, so
that a screen reader does not hear everything twice.

Sphinx's own numbers (`numfig`) count by the place of a page in the contents, and so need numbered headings: chapter 09
is not the ninth page, and its third figure would be no 9.3.
"""

from __future__ import annotations

import ast
import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_nb.core.read import read_myst_markdown_notebook
from sphinx.util import logging

#: Methods that give a picture its title, by a first argument or by `title=`.
TITLES = {"set", "set_title", "suptitle", "timeline"}
#: A caption with more letters than these is not short.
LONG = 90


def title_of(code: str) -> str:
    """The title that a cell's code gives its picture; '' without one, with more than one, or if it is computed."""
    found = []
    for call in ast.walk(ast.parse(code)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in TITLES:
            first = call.args[:1] if call.func.attr in ("set_title", "suptitle") else []
            found += first + [keyword.value for keyword in call.keywords if keyword.arg == "title"]
    title = found[0].value if len(found) == 1 and isinstance(found[0], ast.Constant) else ""
    return title if re.match(r"\w", str(title)) else ""


def first_words(alt: str) -> str:
    """The first sentence of a text alternative; its first clause if there is no other sentence, or if it is long."""
    sentence = re.match(r".*?[.!?](?=\s+[A-Z]|$)", alt, re.DOTALL)
    words = sentence[0] if sentence else alt
    clause = re.match(r".{20,}?(?=[,:;]\s)", words, re.DOTALL)
    return clause[0] if clause and (words == alt or len(words) > LONG) else words


def captioned(content: str, number: str, caption: str) -> str:
    """A picture or a figure that moves as a `figure` with its number and its caption."""
    anchor = f"figure-{number.replace('.', '-')}"
    text = html.escape(caption.strip().rstrip("."), quote=False)
    label = f'<a class="figure-number" href="#{anchor}">Figure {number}</a>'
    return (
        f'<figure class="book-figure" id="{anchor}">{content.strip()}'
        f"<figcaption><span>{label} {text}.</span></figcaption></figure>\n"
    )


class Captions:
    """The captions of the pictures that the cells of a chapter draw."""

    def __init__(self, chapter: Path):
        self.cells = read_myst_markdown_notebook(chapter.read_text(encoding="utf-8")).cells

    def of(self, picture: nodes.raw) -> str:
        """The caption of a picture that a cell draws."""
        alt = re.search(r'alt="([^"]*)"', picture.astext())
        cell = self.cells[_above(picture, "cell")["cell_index"]]
        given = cell.metadata.get("caption") or title_of(re.sub(r"^[%!].*$", "", cell.source, flags=re.MULTILINE))
        return given or first_words(html.unescape(alt[1]) if alt else "")


def _above(node: nodes.Node, name: str) -> Any:
    """The nearest element around a node that has a class of this name, or None."""
    while node is not None and name not in getattr(node, "attributes", {}).get("classes", []):
        node = node.parent
    return node


def number(app: Any, doctree: nodes.document, docname: str) -> None:
    """Number and caption the figures of a chapter."""
    chapter = re.fullmatch(r"book/(\d\d)_\w+", docname)
    if chapter is None or app.builder.format != "html":
        return
    captions = Captions(Path(app.srcdir, f"{docname}.md"))
    count = 0
    for raw in list(doctree.findall(nodes.raw)):
        drawn = raw.astext().lstrip().startswith("<img ") and _above(raw, "cell_output")
        if not (drawn or "caption" in raw):
            continue
        count += 1
        caption = raw["caption"] if "caption" in raw else captions.of(raw)
        if not caption:
            logging.getLogger(__name__).warning("figure %d has no caption", count, location=docname)
        raw.children = [nodes.Text(captioned(raw.astext(), f"{int(chapter[1])}.{count}", caption))]


def setup(app: Any) -> dict[str, Any]:
    """Number when all nodes of a page are there."""
    app.connect("doctree-resolved", number)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
