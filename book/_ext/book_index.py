"""The `book-index` directive: an index from A to Z, made of what the chapters hold.

Its entries are the key terms, with the first section of their chapter that uses each; names in code type that a
chapter's prose mentions (`dist.all_reduce`, `NCCL_DEBUG`), with the sections that do; and the functions and classes
that students write, with their assignments. It is filled when all chapters have been read.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from collected import AFTER_THE_PROSE, plain, read_chapters, terms
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

#: A name of a library in code type: it has a dot, an underscore, a capital letter within, or parentheses.
NAME = re.compile(r"(?=.*(?:[a-z]\.[a-z]|_|[a-z][A-Z]|[A-Z]{3}|\(\)$))[A-Za-z][\w.]{3,}(?:\(\))?")

#: Name as it is shown, whether it is code → {(text of the link, page, anchor)}, in the order in which they were found.
Entries = dict[tuple[str, bool], dict[tuple[str, str, str], None]]


class index_of(nodes.General, nodes.Element):  # noqa: N801, as docutils calls its nodes
    """Stands for the index until all chapters have been read."""


class BookIndex(SphinxDirective):
    """See the module's docstring."""

    def run(self) -> list[nodes.Node]:
        """What stands for the index."""
        self.env.note_reread()
        return [index_of()]


def sections(doctree: nodes.document) -> list[nodes.section]:
    """The sections of a chapter below its title that treat something: mentions in the others lead nowhere."""
    found = [one for one in doctree.findall(nodes.section) if isinstance(one.parent, nodes.section)]
    return [one for one in found if isinstance(one[0], nodes.title) and one[0].astext() not in AFTER_THE_PROSE]


def entries(env: Any) -> Entries:
    """All entries, unsorted."""
    found: Entries = defaultdict(dict)
    for chapter in read_chapters(Path(env.srcdir, "book")):
        page = f"book/{chapter.name}"
        parts = sections(env.get_doctree(page))
        for part in parts:
            for text in {node.astext() for node in part.findall(nodes.literal) if _in_prose(node)}:
                if NAME.fullmatch(text):
                    found[text.removesuffix("()"), True][
                        f"{chapter.number} {part[0].astext()}", page, part["ids"][0]
                    ] = None
        for term, _ in terms(chapter.text):
            found[re.sub(r"[`*$\\]", "", term), False] |= _places(term, chapter.number, page, parts)
        for name in _written(Path(env.srcdir, "notebooks", chapter.name, f"{chapter.name}.ipynb")):
            place = f"notebooks/{chapter.name}/{chapter.name}"
            found[name, True][f"{chapter.number} The assignment", place, ""] = None
    return found


def _in_prose(node: nodes.Node) -> bool:
    return isinstance(node.parent, (nodes.paragraph, nodes.strong, nodes.emphasis, nodes.title))


def _places(term: str, number: str, page: str, parts: list[nodes.section]) -> dict[tuple[str, str, str], None]:
    """The glossary, and the first section of the chapter that uses a term."""
    found = {("glossary", "book/reference/glossary", f"term-{nodes.make_id(plain(term))}"): None}
    first = re.split(r",\s|\s\(", plain(term))[0]
    for part in parts:
        if re.search(rf"(?<!\w){re.escape(first)}", part.astext().casefold()):
            return found | {(f"{number} {part[0].astext()}", page, part["ids"][0]): None}
    return found


def _written(notebook: Path) -> list[str]:
    """The functions and classes that a student writes in a notebook."""
    found = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("solution") and cell["cell_type"] == "code":
            body = ast.parse("".join(cell["source"])).body
            found += [one.name for one in body if isinstance(one, (ast.FunctionDef, ast.ClassDef))]
    return found


def fill(app: Any, doctree: nodes.document, docname: str) -> None:
    """Put the index in the place of what stands for it."""
    for node in list(doctree.findall(index_of)):
        made: list[nodes.Node] = []
        letter = ""
        for (name, code), places in sorted(entries(app.env).items(), key=lambda one: one[0][0].casefold().lstrip("_")):
            first = name.lstrip("_")[:1].upper()
            if (first if first.isalpha() else "0–9") != letter:
                letter = first if first.isalpha() else "0–9"
                made += [nodes.rubric("", letter), nodes.bullet_list(classes=["book-index"])]
            line = nodes.paragraph("", "", (nodes.literal if code else nodes.inline)("", name))
            for text, page, anchor in places:
                uri = app.builder.get_relative_uri(docname, page) + (f"#{anchor}" if anchor else "")
                line += [nodes.Text(" · "), nodes.reference("", text, internal=True, refuri=uri)]
            made[-1] += nodes.list_item("", line)
        node.replace_self(made)


def setup(app: Any) -> dict[str, Any]:
    """Register the directive, and what fills it."""
    app.add_node(index_of)
    app.add_directive("book-index", BookIndex)
    app.connect("doctree-resolved", fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
