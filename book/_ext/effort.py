"""Adds a line under the title of each chapter: how long it takes to read, and what there is to do.

The minutes are counted from the words of its paragraphs, lists and tables, and rounded up to whole fives. Code,
formulas and figures take time as well: the speed is set low for that.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

#: Words that a reader of technical text takes in within a minute, with formulas and code between them.
WORDS_A_MINUTE = 150


class effort_of(nodes.inline):  # noqa: N801, as docutils calls its nodes
    """Stands for the line of effort of a chapter, until all chapters have been read. `chapter`: its document's name."""


def exercises(notebook: dict) -> list[tuple[int, str, int]]:
    """(number, title, points) of each exercise of a released notebook."""
    found = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
        for heading in re.findall(r"^#+ Exercise .*$", text, re.MULTILINE):
            number, points = re.search(r"\d+", heading), re.search(r"\((\d+) points?\)", heading)
            title = heading.replace(points[0], "").split("·", 1)[1].strip()
            found.append((int(number[0]), title, int(points[1])))
    return found


def minutes(words: int) -> int:
    """Minutes to read so many words, in whole fives."""
    return max(5, 5 * math.ceil(words / WORDS_A_MINUTE / 5))


def words(document: nodes.document) -> int:
    """The words of a chapter's paragraphs, lists and tables."""
    return sum(len(node.astext().split()) for node in document.findall(nodes.paragraph))


class Effort(SphinxTransform):
    """Put the line under the title of each chapter."""

    default_priority = 410

    def apply(self, **kwargs) -> None:
        match = re.fullmatch(r"book/(\d\d_\w+)", self.env.docname)
        title = next(iter(self.document.findall(nodes.title)), None)
        if match is None or title is None:
            return
        assignment = f"notebooks/{match[1]}/{match[1]}"
        path = Path(self.env.srcdir, f"{assignment}.ipynb")
        self.env.note_dependency(str(path))
        found = exercises(json.loads(path.read_text(encoding="utf-8")))
        points = sum(points for _, _, points in found)
        link = addnodes.pending_xref(
            "",
            nodes.inline("", f"{len(found)} exercise{'s' * (len(found) != 1)}, {points} points"),
            refdomain="std",
            reftype="doc",
            reftarget=f"/{assignment}",
            refexplicit=True,
            refdoc=self.env.docname,
            refwarn=True,
        )
        line = nodes.paragraph("", "", classes=["effort"])
        line += [nodes.Text(f"About {minutes(words(self.document))} minutes to read · "), link]
        title.parent.insert(title.parent.index(title) + 1, line)


def setup(app):
    """Register the node and the transform."""
    app.add_node(effort_of)
    app.add_transform(Effort)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
