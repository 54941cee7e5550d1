"""The `course-map` directive: the table of lessons as bands of cards, one band a part, that say what needs what.

    :::{course-map}
    :needs: 02<01 05<01,04

    | | Lesson | What you write | |
    |---|---|---|---|
    | | **Part I · Communication** | | |
    | 01 | [Collectives](01_collectives.md) | broadcast, … | [assignment](../notebooks/…) |
    :::

The body is a table with a row for each part and for each lesson. `:needs:` says on which lessons a lesson builds.
While a reader points at a card, the cards that it needs stand out. The minutes of reading on each card are those that
stand first under the title of the chapter (`effort.py`). A lesson that `:needs:` names and the table lacks causes a
warning, which stops the build.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from effort import effort_of, said
from sphinx.util.docutils import SphinxDirective


class CourseMap(SphinxDirective):
    """See the module's docstring."""

    has_content = True
    option_spec: ClassVar = {"needs": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """A container with the style of what stands out, and a band for each part."""
        body = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, body)
        rows = [list(row.findall(nodes.entry)) for part in body.findall(nodes.tbody) for row in part.findall(nodes.row)]
        needs = dict(pair.split("<") for pair in self.options.get("needs", "").split())
        numbers = {row[0].astext() for row in rows} - {""}
        unknown = (set(needs) | {one for several in needs.values() for one in several.split(",")}) - numbers
        if not numbers or unknown:
            problem = f"there is no lesson {min(unknown)} in the table" if unknown else "it needs a table of lessons"
            return [self.state_machine.reporter.warning(f"course-map: {problem}", line=self.lineno)]
        course = nodes.container(classes=["course-map"])
        course += nodes.raw("", f"<style>{''.join(map(_rule, needs, needs.values()))}</style>", format="html")
        for row in rows:
            number = row[0].astext()
            if number:
                course[-1] += self.card(number, row, needs.get(number, ""))
            else:
                course += [nodes.rubric("", row[1].astext()), nodes.bullet_list(classes=["course-part"])]
        return [course]

    def card(self, number: str, row: list[nodes.entry], needs: str) -> nodes.list_item:
        """A lesson: its number and name, what one writes, what it takes, and on what it builds."""
        name, what, *_, assignment = ([*entry[0]] if len(entry) else [] for entry in row[1:])
        where = re.fullmatch(r"(.*/)?(\d\d_\w+)(\.md)?", next(iter(row[1].findall(_is_link)))["reftarget"])
        title = nodes.paragraph("", "", nodes.inline("", number, classes=["course-number"]), *name)
        takes = nodes.paragraph("", "", classes=["course-takes"])
        takes += [effort_of(chapter=f"book/{where[2]}"), nodes.Text(" · "), *assignment]
        card = nodes.list_item("", title, nodes.paragraph("", "", *what), takes, classes=[f"lesson-{number}"])
        if needs:
            takes += nodes.Text(f" · builds on {needs.replace(',', ', ')}")
        return card


def _is_link(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Element) and "reftarget" in node


def _rule(number: str, needs: str) -> str:
    """The style by which the cards that a lesson needs stand out while a reader points at it."""
    cards = ",".join(f".lesson-{one}" for one in needs.split(","))
    return f".course-map:has(.lesson-{number}:is(:hover,:focus-within)) :is({cards}){{outline:2px solid var(--rank-1)}}"


def _fill(app: Any, doctree: nodes.document, docname: str) -> None:
    """Put the minutes in the place of what stands for them."""
    for node in list(doctree.findall(effort_of)):
        text = f"{said(app.env.get_doctree(node['chapter']))} min"
        node.replace_self(nodes.Text(text))


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("course-map", CourseMap)
    app.connect("doctree-resolved", _fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
