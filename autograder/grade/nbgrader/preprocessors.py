"""Steps that take part in nbgrader's own: three at release, and one that runs a submission at autograding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import nbformat
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Integer, List, Unicode

from autograder import checks, properties
from autograder.grade import isolation, outcome
from autograder.grade.nbgrader import checklist, library
from autograder.grade.nbgrader.submission_files import lesson_notebook, taken
from autograder.grade.running import submission
from autograder.grade.running.run_cells import Limits
from autograder.lesson import adapted, course_settings, names, notebook, pieces


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


class RunCells(NbGraderPreprocessor):
    """Takes the place of nbgrader's Execute: a submission's cells run in a jail, its grade cells outside."""

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

    def preprocess(self, nb: nbformat.NotebookNode, resources: dict) -> tuple[nbformat.NotebookNode, dict]:
        """Run the restored notebook. If the submission could not be read, no kernel is started."""
        whole = outcome.of_notebook(nb)
        if whole.problem:
            return nb, resources
        where = resources["nbgrader"]
        course = CourseDirectory(config=self.config)
        handed_in = Path(course.format_path(course.submitted_directory, where["student"], where["assignment"]))
        found = taken(handed_in, self.data_files)
        source = Path(course.format_path(course.source_directory, ".", where["assignment"]))
        lesson = lesson_notebook(source / f"{where['notebook']}.ipynb", course_settings.of(course.root))
        submission.run_submission(nb.cells, lesson, {**found.files, **pieces.companions(source)}, self)
        outcome.to_metadata(nb, replace(whole, left_out=found.left_out))
        return nb, resources
