"""Adds a line under the title of each chapter: how long it takes to read, and what there is to do.

A chapter may have a core and optional parts: what is folded (`{dropdown}`, code with `hide-input`), and what
stands under the heading `## Optional sections`. The core is the rest, without the sections that one looks things up in
or works through (`chapter.APPARATUS`). A chapter with that heading says the minutes of its core and those of the whole
page; any other chapter those of the whole page.

The minutes are counted from words, lines of code, displayed formulas and figures, and rounded up to whole fives. Words
among many numbers, which a reader believes or checks one by one, count four times.

The role `{hours}` puts the hours of all lessons on a page: {hours}`reading`, of the cores of the chapters, or
{hours}`assignments`, as their first cells say.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

from autograder.lesson.chapter import APPARATUS, OPTIONAL

#: Minutes that a reader of technical text needs for a word, a line of code or output, a displayed formula, a figure.
#: Strict readers of eight chapters reported 1.15 to 1.6 times what three quarters of these give.
WORD, LINE, FORMULA, FIGURE = 1 / 90, 1 / 9, 2 / 3, 4 / 3
#: From which share on a paragraph's or a table cell's words are among many numbers, and how often they count then.
MANY_NUMBERS, SLOWER = 0.12, 4


#: Numbers that the first cell of an assignment may spell out.
SPELLED = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
DURATION = re.compile(r"^(?:(\w+) sittings of )?about ([\w½]+)(?: to ([\w½]+))? hours?\b", re.MULTILINE | re.IGNORECASE)


class effort_of(nodes.inline):  # noqa: N801, as docutils calls its nodes
    """Stands for the line of effort of a chapter, until all chapters have been read. `chapter`: its document's name."""


class hours_of(nodes.inline):  # noqa: N801, as docutils calls its nodes
    """Stands for the hours of all lessons, until all chapters have been read. `what`: reading or assignments."""


def hours(notebook: dict) -> tuple[float, float] | None:
    """How long an assignment takes, at least and at most, by its first cell; None if that does not say."""
    found = DURATION.search("".join(notebook["cells"][0]["source"]))
    if not found:
        return None
    sittings, least, most = map(_number, (found[1] or "one", found[2], found[3] or found[2]))
    return sittings * least, sittings * most


def _number(text: str) -> float:
    return SPELLED.get(text.lower()) or float(text.replace("½", ".5"))


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


def is_optional(node: nodes.Node) -> bool:
    """Is this a part of a chapter that its core leaves out?"""
    if isinstance(node, nodes.section):
        return node[0].astext() in (OPTIONAL, *APPARATUS)
    if not isinstance(node, nodes.container):
        return False
    folded = "cell_input" in node["classes"] and node.parent.get("hide_mode") in ("all", "input", "input+output")
    return folded or node.get("design_component") == "dropdown"


def numbers(paragraph: nodes.Node) -> int:
    """How many of a paragraph's words have a digit, formulas and code left out."""
    texts = (text for text in paragraph.findall(nodes.Text) if not isinstance(text.parent, (nodes.math, nodes.literal)))
    return sum(bool(re.search(r"\d", word)) for word in " ".join(map(str, texts)).split())


def minutes_of(node: nodes.Node, core: bool = False) -> float:
    """Minutes to read a node and what is in it. core: leave out what is optional."""
    if (core and is_optional(node)) or getattr(node, "attributes", {}).get("mime_type") == "text/plain":
        return 0.0
    if isinstance(node, nodes.paragraph):
        words = len(node.astext().split())
        return WORD * words * (SLOWER if numbers(node) > MANY_NUMBERS * words else 1)
    if isinstance(node, nodes.literal_block):
        return LINE * len(node.astext().splitlines())
    if isinstance(node, nodes.math_block):
        return FORMULA
    if isinstance(node, nodes.image) or (isinstance(node, nodes.raw) and re.search("<(img|svg)", node.astext())):
        return FIGURE
    return sum(minutes_of(child, core) for child in node.children)


def said(document: nodes.document) -> int:
    """The minutes that stand first under the title of a chapter that has been read."""
    return next(node["minutes"] for node in document.findall(nodes.paragraph) if "effort" in node["classes"])


def reading(document: nodes.document) -> list[int]:
    """Minutes to read a chapter, in whole fives: of its core and of all of it, or only of all of it."""
    marked = any(section[0].astext() == OPTIONAL for section in document.findall(nodes.section))
    return [max(5, 5 * math.ceil(minutes_of(document, core) / 5)) for core in ((True, False) if marked else (False,))]


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
        line["minutes"], *whole = reading(self.document)
        both = "".join(f", {minutes} with everything optional" for minutes in whole)
        line += [nodes.Text(f"About {line['minutes']} minutes to read{both} · "), link]
        title.parent.insert(title.parent.index(title) + 1, line)


def _role(name: str, rawtext: str, what: str, *args: Any) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    return [hours_of(what=what)], []


def _fill(app: Any, doctree: nodes.document, docname: str) -> None:
    """Put the hours of all lessons in the place of what stands for them."""
    for node in list(doctree.findall(hours_of)):
        if node["what"] == "reading":
            chapters = [name for name in app.env.found_docs if re.fullmatch(r"book/\d\d_\w+", name)]
            total = sum(said(app.env.get_doctree(name)) for name in chapters) / 60
        else:
            files = Path(app.srcdir, "notebooks").glob("[0-9][0-9]_*/[0-9][0-9]_*.ipynb")
            spans = [hours(json.loads(path.read_text(encoding="utf-8"))) for path in files if ".mine" not in path.name]
            total = sum(statistics.mean(span) for span in spans if span)
        node.replace_self(nodes.Text(f"{total:.0f}"))


def setup(app):
    """Register the nodes, the transform and the role."""
    app.add_node(effort_of)
    app.add_node(hours_of)
    app.add_role("hours", _role)
    app.connect("doctree-resolved", _fill)
    app.add_transform(Effort)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
