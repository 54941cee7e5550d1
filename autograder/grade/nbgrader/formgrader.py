"""nbgrader's page on a submission, where an instructor gives points and comments: no script from elsewhere runs there.

If `course.toml` says `anonymous = true`, neither that page nor the list that leads to it has a student's name.

nbgrader's template fetches MathJax from another machine, without saying what it expects to get: whoever serves that
acts as the instructor. And MathJax draws what a student's formula asks for, boxes that cover the page among it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import nbformat
from nbconvert.exporters import HTMLExporter
from nbconvert.preprocessors import Preprocessor
from traitlets import Bool

from autograder.grade import limits
from autograder.grade.nbgrader import library
from autograder.grade.pages import formulas
from autograder.grade.pages.safe_html import SIGNS
from autograder.lesson import course_settings, mathml

#: Scripts of other machines, and what configures them. A submission's own are text by now (`safe_html`).
FOREIGN = re.compile(
    r"""<script[^>]*\bsrc=["'](?:https?:)?//[^>]*>.*?</script>|<script type="text/x-mathjax-config">.*?</script>""",
    re.DOTALL,
)
#: Nothing is drawn outside the box that it belongs to; the classes are those of drawn formulas. nbgrader's script waits
#: for MathJax, which is left out, before it selects a field and sets up its shortcuts.
OWN_HEAD = """<style>
.rendered_html, .text_cell_render, .output { contain: paint; }
.tml-right { text-align: right; text-align: -webkit-right; } .tml-left { text-align: left; text-align: -webkit-left; }
</style>
<script>
var MathJax = {Hub: {Startup: {signal: {Interest: function (tell) { setTimeout(tell, 0, "End"); }}}}};
</script>
</head>"""


#: Shown by a click on the eye in place of a name.
HIDDEN = "hidden (anonymous in course.toml)"
#: What makes the page's link to the notebook's file, in a folder with the student's name.
LIVE = re.compile(r""" (?:data-link="[^"]*\.ipynb"|title="Open live notebook")""")


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
        anonymous = library.course_settings_of(self.config).anonymous
        if anonymous:
            resources = {**(resources or {}), "student": HIDDEN, "last_name": "", "first_name": ""}
        page, resources = super().from_notebook_node(nb, resources, **kwargs)
        page = LIVE.sub("", page) if anonymous else page
        return FOREIGN.sub("", page).replace("</head>", OWN_HEAD, 1), resources


def use_own_page() -> None:
    """Let nbgrader's formgrader show submissions by FormgraderPage; `nbgrader_config.py` calls this."""
    from nbgrader.apps.api import NbGraderAPI
    from nbgrader.server_extensions.formgrader import formgrader

    formgrader.HTMLExporter = FormgraderPage
    method = NbGraderAPI.get_notebook_submissions
    if not hasattr(method, "__wrapped__"):  # the settings are read more than once
        NbGraderAPI.get_notebook_submissions = _without_names(method)


def _without_names(get_notebook_submissions: Callable) -> Callable:
    """nbgrader's method, in whose rows no student is named if the course is graded anonymously."""

    @functools.wraps(get_notebook_submissions)
    def rows(self: Any, assignment_id: str, notebook_id: str) -> list[dict]:
        found = get_notebook_submissions(self, assignment_id, notebook_id)
        if course_settings.of(self.coursedir.root).anonymous:
            for row in found:
                row.update(student=HIDDEN, last_name=None, first_name=None)
        return found

    return rows
