"""nbgrader's page on a submission, where an instructor gives points and comments: no script from elsewhere runs there.

nbgrader's template fetches MathJax from another machine, without saying what it expects to get: whoever serves that
acts as the instructor. And MathJax draws what a student's formula asks for, boxes that cover the page among it.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import nbformat
from nbconvert.exporters import HTMLExporter
from nbconvert.preprocessors import Preprocessor
from traitlets import Bool

from autograder.grading import limits
from autograder.grading.pages import formulas
from autograder.grading.pages.safe_html import SIGNS
from autograder.lessons import mathml

#: Scripts of other machines, and what configures them. A submission's own are text by now (`safe_html`).
FOREIGN = re.compile(
    r"""<script[^>]*\bsrc=["'](?:https?:)?//[^>]*>.*?</script>|<script type="text/x-mathjax-config">.*?</script>""",
    re.DOTALL,
)
#: Nothing is drawn outside the box that it belongs to; the classes are those of drawn formulas.
STYLE = """<style>
.rendered_html, .text_cell_render, .output { contain: paint; }
.tml-right { text-align: right; text-align: -webkit-right; } .tml-left { text-align: left; text-align: -webkit-left; }
</style>
</head>"""


class DrawnFormulas(Preprocessor):
    """Draws the formulas of a notebook that SafeCells has made safe."""

    enabled = Bool(True).tag(config=True)

    def preprocess(self, nb: nbformat.NotebookNode, resources: dict) -> tuple[nbformat.NotebookNode, dict]:
        """The notebook with MathML; if that takes too long, with its formulas as text."""
        texts = [cell for cell in nb.cells if cell.cell_type == "markdown"]
        try:
            made = _helper().call(_drawn, [cell.source for cell in texts])
        except limits.OutOfLimitsError:
            return nb, resources
        for cell, source in zip(texts, made, strict=True):
            cell.source = source
        return nb, resources


@functools.cache
def _helper() -> limits.Helper:
    return limits.Helper(limits.PAGE_MEMORY, limits.PAGE_SECONDS, prepare=mathml.engine)


def _drawn(sources: list[str]) -> list[str]:
    budget = formulas.Budget()
    return [formulas.drawn(source, budget).translate(SIGNS) for source in sources]


class FormgraderPage(HTMLExporter):
    """nbconvert's exporter as the formgrader uses it, of whose page foreign scripts are left out."""

    def from_notebook_node(
        self, nb: nbformat.NotebookNode, resources: dict | None = None, **kwargs: Any
    ) -> tuple[Any, dict]:
        """The page as text, and the resources."""
        page, resources = super().from_notebook_node(nb, resources, **kwargs)
        return FOREIGN.sub("", page).replace("</head>", STYLE, 1), resources


def use_own_page() -> None:
    """Let nbgrader's formgrader show submissions by FormgraderPage; `nbgrader_config.py` calls this."""
    from nbgrader.server_extensions.formgrader import formgrader

    formgrader.HTMLExporter = FormgraderPage
