"""Adds a block to every page of a released notebook that says what the page is and offers the file.

The block is added while the book is built, so that the files in `notebooks/` stay exactly as nbgrader made them. It
lists the exercises too, because these pages have no contents at their side: code of 120 columns takes their place. A
notebook has the title of its chapter; where a page leads to the next or the previous one, it is called an assignment.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

FOLDER = "notebooks/"


class OfferNotebook(SphinxTransform):
    """Put the download link under the title of each page in `notebooks/`."""

    default_priority = 400

    def apply(self, **kwargs) -> None:
        docname = self.env.docname
        if not docname.startswith(FOLDER):
            return
        name = PurePosixPath(docname).name + ".ipynb"
        title = next(iter(self.document.findall(nodes.title)), None)
        if title is None:
            return
        link = addnodes.download_reference(
            "",
            "",
            nodes.literal("", name, classes=["xref", "download"]),
            reftarget=f"/{docname}.ipynb",
            refdoc=docname,
            refdomain="",
            reftype="download",
            refexplicit=False,
            refwarn=False,
        )
        paragraph = nodes.paragraph(
            "",
            "",
            nodes.strong("", "The assignment, as a student gets it. "),
            nodes.Text("Download "),
            link,
            nodes.Text(", or work on the copy that "),
            nodes.literal("", "make lab"),
            nodes.Text(" opens in JupyterLab. Nothing is run on this page."),
        )
        block = nodes.container("", paragraph, *_exercises(self.document), classes=["assignment-offer"])
        title.parent.insert(title.parent.index(title) + 1, block)


def _exercises(document: nodes.document) -> list[nodes.Node]:
    """A list of links to the exercises on a page, by their names without arguments; nothing where there is none."""
    items = []
    for section in document.findall(nodes.section):
        title = section.next_node(nodes.title)
        if title is not None and title.astext().startswith("Exercise "):
            inside = [child.deepcopy() for child in title.children]
            for literal in inside:
                if isinstance(literal, nodes.literal):
                    name = re.sub(r"\(.*\)", "", literal.astext())
                    literal.clear()
                    literal += nodes.Text(name)
            link = nodes.reference("", "", *inside, internal=True, refid=section["ids"][0])
            items.append(nodes.list_item("", nodes.paragraph("", "", link)))
    return [nodes.bullet_list("", *items)] if items else []


def _name_neighbors(app, pagename, templatename, context, doctree) -> None:
    """Call a notebook "Assignment 01" in the links to the next and the previous page."""
    for neighbor in (context.get("prev"), context.get("next")):
        number = re.search(rf"{FOLDER}(\d\d)_", neighbor["link"]) if neighbor else None
        if number:
            neighbor["title"] = f"Assignment {number[1]}"
        elif neighbor and (chapter := re.search(r"(\d\d)_\w+\.html$", neighbor["link"])):
            neighbor["title"] = f"{chapter[1]} · {neighbor['title']}"


def setup(app):
    """Register the transform, and the names of neighbors."""
    app.add_transform(OfferNotebook)
    app.connect("html-page-context", _name_neighbors)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
