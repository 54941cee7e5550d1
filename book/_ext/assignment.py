"""Adds a block to every page of a released notebook that says what the page is and offers the file.

The block is added while the book is built, so that the files in `notebooks/` stay exactly as nbgrader made them.
"""

from __future__ import annotations

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
        block = nodes.container("", paragraph, classes=["assignment-offer"])
        title.parent.insert(title.parent.index(title) + 1, block)


def setup(app):
    """Register the transform."""
    app.add_transform(OfferNotebook)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
