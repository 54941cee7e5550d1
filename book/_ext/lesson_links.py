"""Links "lesson 04" and "chapter 04", wherever a page says so, to that chapter.

"Lessons 08 and 09" and "lessons 08, 09 and 11" become one link for each number. A page does not link to itself; what
stands in titles, links and code is left alone. A number without a chapter causes a warning, which stops the build.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

PASSAGE = re.compile(r"\b(?:lesson|chapter)s? \d\d\b(?:(?:, | and | or | to |, and )\d\d\b)*", re.IGNORECASE)
NUMBER = re.compile(r"(?:\b(?:lesson|chapter) )?\b\d\d\b", re.IGNORECASE)
CLOSED = (nodes.title, nodes.reference, addnodes.pending_xref, addnodes.download_reference, nodes.literal, nodes.raw)


class LinkLessons(SphinxTransform):
    """Put the links into every page of the book and of the notebooks."""

    default_priority = 420

    def apply(self, **kwargs) -> None:
        chapters = {path.stem[:2]: path.stem for path in Path(self.env.srcdir, "book").glob("[0-9][0-9]_*.md")}
        for text in list(self.document.findall(nodes.Text)):
            if PASSAGE.search(text) and not any(isinstance(node, CLOSED) for node in _above(text)):
                text.parent.replace(text, self.linked(str(text), chapters))

    def linked(self, text: str, chapters: dict[str, str]) -> list[nodes.Node]:
        """The text, with a link for each number of a lesson."""
        found: list[nodes.Node] = []
        done = 0
        for passage in PASSAGE.finditer(text):
            for number in NUMBER.finditer(text, *passage.span()):
                name = chapters.get(number[0][-2:])
                if name is None:
                    logging.getLogger(__name__).warning("there is no %s", number[0], location=self.env.docname)
                elif name != self.env.docname.rpartition("/")[2]:
                    found += [nodes.Text(text[done : number.start()]), self.link(number[0], name)]
                    done = number.end()
        return [*found, nodes.Text(text[done:])]

    def link(self, text: str, name: str) -> addnodes.pending_xref:
        """A link to a chapter."""
        page = {"refdomain": "std", "reftype": "doc", "reftarget": f"/book/{name}", "refdoc": self.env.docname}
        return addnodes.pending_xref("", nodes.inline("", text), refexplicit=True, refwarn=True, **page)


def _above(node: nodes.Node):
    while node.parent is not None:
        node = node.parent
        yield node


def setup(app):
    """Register the transform."""
    app.add_transform(LinkLessons)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
