"""Steps that take part in nbgrader's own at release, and how submissions run, as `nbgrader_config.py` sets it."""

from __future__ import annotations

import nbformat
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Integer, List, Unicode
from traitlets.config import Configurable

from autograder import checks, properties
from autograder.grade import isolation
from autograder.grade.nbgrader import checklist, library
from autograder.grade.running.run_cells import Limits
from autograder.lesson import adapted, names, notebook


class AdaptLesson(NbGraderPreprocessor):
    """Makes the course's own version of a lesson: its points, its exercises, its own text."""

    def preprocess(self, nb: nbformat.NotebookNode, resources: dict) -> tuple[nbformat.NotebookNode, dict]:
        """The lesson's notebook with the settings of `course.toml`."""
        own = library.course_settings_of(self.config)
        return adapted.adapted(notebook.named(nb), resources["nbgrader"]["assignment"], own), resources


class ListChecks(NbGraderPreprocessor):
    """Adds the list to the statement of each exercise that has checks.

    ValueError for points that do not add up, and for an exercise that builds on one that does not exist.
    """

    def preprocess(self, nb: nbformat.NotebookNode, resources: dict) -> tuple[nbformat.NotebookNode, dict]:
        """Append each exercise's list to the Markdown cell with its statement."""
        notebook.named(nb)
        for cell, name in names.undefined_names(nb):
            strange = properties.strange_parameter(cell, name)
            raise ValueError(strange or f"{cell} builds on {name}, which no cell of the lesson defines")
        all_or_nothing = nb.metadata.pop(adapted.ALL_OR_NOTHING, False)
        statements = {cell.id: cell for cell in nb.cells if cell.cell_type == "markdown"}
        for test in nb.cells:
            if notebook.nbgrader_role(test) != "grade":
                continue
            found = properties.of_test(test)
            statement = statements.get(checklist.statement_of(test.id))
            sentences = {one.name: one.sentence for one in checks.of_exercise(notebook.answer_of(test.id))}
            if statement is not None and sentences:
                lines = checklist.lines_of(sentences, found, all_or_nothing)
                statement.source = f"{statement.source.rstrip()}\n\n{checklist.folded(lines)}"
        for cell in nb.cells:
            cell.metadata.pop(adapted.SHARED, None)
        return nb, resources


class ClearAttachments(NbGraderPreprocessor):
    """Releases only those pictures that the text of their cell still names, and so none of a model answer."""

    def preprocess_cell(
        self, cell: nbformat.NotebookNode, resources: dict, index: int
    ) -> tuple[nbformat.NotebookNode, dict]:
        """One cell without the attachments that nothing shows."""
        pictures = cell.pop("attachments", {})
        if kept := {name: data for name, data in pictures.items() if notebook.address_of(name).search(cell.source)}:
            cell.attachments = kept
        return cell, resources


class RunCells(Configurable):
    """How a submission runs: its cells in a jail, its grade cells outside."""

    timeout = Integer(60, help="Seconds for one cell.").tag(config=True)
    test_timeout = Integer(120, help="Seconds for one test cell.").tag(config=True)
    notebook_timeout = Integer(900, help="Seconds for the whole notebook.").tag(config=True)
    jail = Bool(True, help="Run submissions in a jail. Off, they run with your own rights.").tag(config=True)
    demonstrations = Bool(
        False, help="Also run the lesson's unchanged demonstrations, on which no answer and no test depends."
    ).tag(config=True)
    data_files = List(Unicode(), help="Patterns of files that are taken from a submission.").tag(config=True)

    @property
    def kernels(self) -> str:
        """The module that makes the kernels."""
        return isolation.kernels(self.jail)

    @property
    def limits(self) -> Limits:
        """The three times together."""
        return Limits(self.timeout, self.test_timeout, self.notebook_timeout)
