"""What gets graded: the submission's own cells, with the instructor's test cells and tasks in their places.

A submission can come in any state: test cells deleted, doubled, edited, moved, turned into Markdown, points
changed, or no notebook at all. nbgrader stops at some of these. Here the notebook to grade is built anew:
the student's cells in the student's order, and every test cell from the gradebook, after the answer it tests. Cells
are known by nbgrader's metadata or their ids, and where an editor has removed both, by what they say (`_name_by_text`,
`_defining`). Where a setup cell of the lesson was changed or lost, the lesson's own runs as well (`setup_cells`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import nbformat
from nbgrader.api import Gradebook

from autograder.grade import outcome
from autograder.grade.nbgrader import setup_cells
from autograder.grade.nbgrader.reading import new_cell, notebook_of
from autograder.lesson import adapted
from autograder.lesson.notebook import STUB, answer_of, is_task, natural

#: The start of a function or a class, and its name.
DEFINITION = re.compile(r"^(?:async +def|def|class) +(\w+)", re.MULTILINE)

PUT_BACK = "The test cell was missing and has been put back."
EARLIER = "The test cell is that of an earlier version of the lesson; the present one was run."
OLDER = (
    "This is an earlier version of the lesson: tests have changed since, or exercises were added, which are missing "
    "here. Copy your answers into the present version, and hand that in."
)


@dataclass(frozen=True)
class SourceCell:
    """A cell as the gradebook keeps it: a test with its hidden part, an answer cell with its stub, or a task.

    by_hand: does a person grade it, an answer (or a task) without a test? earlier: of a test, digests of what students
    got of it in earlier versions of the lesson.
    """

    name: str
    source: str
    is_test: bool
    points: float = 0.0
    cell_type: str = "code"
    by_hand: bool = False
    is_task: bool = False
    earlier: tuple[str, ...] = ()

    @property
    def test(self) -> str:
        """The name under which its points are: its own, or for an answer with a test that of the test."""
        return self.name if self.is_test or self.by_hand else f"{self.name}-test"

    @property
    def functions(self) -> list[str]:
        """The functions and classes that it defines; in a stub, those that students write."""
        _, *parts = DEFINITION.split(self.source)
        found = list(zip(parts[::2], parts[1::2], strict=True))
        return [name for name, body in found if STUB in body] or [name for name, _ in found]

    def cell(self, source: str | None = None, pictures: dict | None = None) -> nbformat.NotebookNode:
        """The cell with nbgrader's metadata; `source` is the student's text, if it counts, `pictures` what it shows."""
        role: dict[str, Any] = {
            "grade": self.is_test or (self.by_hand and not self.is_task),
            "solution": not self.is_test and not self.is_task,
            "locked": self.is_test or self.is_task,
            "task": self.is_task,
        }
        role |= {"grade_id": self.name, "schema_version": 3, "cell_type": self.cell_type}
        if self.is_test or self.by_hand:
            role["points"] = self.points
        text = self.source if source is None else source
        return new_cell(self.cell_type, text, {"nbgrader": role}, self.name, pictures)


@dataclass
class Named:
    """A cell of a notebook that is being restored, and the name of the answer or test that it is, if it is one."""

    cell: nbformat.NotebookNode
    name: str | None = None


@dataclass
class Restored:
    """The cells to run; for each test what was repaired, a sentence each; the names of answers never written."""

    named: list[Named]
    notes: dict[str, list[str]] = field(default_factory=dict)
    unwritten: set[str] = field(default_factory=set)

    @property
    def cells(self) -> list[nbformat.NotebookNode]:
        """The cells to run."""
        return [one.cell for one in self.named]

    def places(self, name: str | None) -> list[int]:
        """Where the cells of this name are."""
        return [at for at, one in enumerate(self.named) if one.name == name]


def restore(submitted: list[nbformat.NotebookNode], sources: list[SourceCell]) -> Restored:
    """Build the cells to run from those of a submission and the gradebook's answer and test cells."""
    known = {source.name: source for source in sources}
    result = Restored([Named(_bare(cell), _name(cell, known)) for cell in submitted])
    _name_by_text(result, known)
    _name_merged(result, known)
    for source in sorted(known.values(), key=lambda source: (source.is_test, natural(source.name))):
        place = _place_test if source.is_test else _place_task if source.is_task else _place_answer
        place(source, result)
    taken = set(known)
    for number, cell in enumerate(result.cells):
        if "nbgrader" not in cell.metadata:
            cell.id = next(name for name in _ids(number) if name not in taken)
            taken.add(cell.id)
    return result


def _bare(cell: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return new_cell(cell.cell_type, cell.source, pictures=cell.get("attachments"))


def _place_answer(source: SourceCell, result: Restored) -> None:
    notes, all_cells = result.notes.setdefault(source.test, []), result.named
    named = result.places(source.name)
    defining = [] if named else _defining(source, result)
    copies = named or [at for at in defining if all_cells[at].name is None]
    if not copies:
        # No stub here: it would undo what another cell defines.
        if defining:  # the answer to another exercise
            at, text = defining[-1] + 1, "# This answer is in another cell of the submission."
        else:
            notes.append("The answer cell was missing.")
            at, text = _before_later(source, result), "This answer cell was not in the submission."
            text = f"# {text}" if source.cell_type == "code" else text
        all_cells.insert(at, Named(source.cell(text), source.name))
        return
    nothing = {source.source.strip(), ""} if source.by_hand else {source.source.strip()}
    edited = [at for at in copies if all_cells[at].cell.source.strip() not in nothing]
    if not edited:
        result.unwritten.add(source.name)
    if len(named) > 1:
        notes.append("The answer cell was there several times; the last one that was written counts.")
    at = (edited or copies)[-1]
    if all_cells[at].cell.cell_type != source.cell_type:
        turned = {"code": "text; it was run as code", "markdown": "code; it is read as text"}[source.cell_type]
        notes.append(f"The answer cell had been turned into {turned}.")
    counts = all_cells[at].cell
    all_cells[at] = Named(source.cell(counts.source, counts.get("attachments")), source.name)
    # An empty copy below the answer would undo it. Written copies stay and run as cells of the student's own.
    for other in reversed(copies):
        if other != at:
            all_cells[other].name = None
            if edited and other not in edited:
                del all_cells[other]


def _before_later(source: SourceCell, result: Restored) -> int:
    """Where a cell belongs that was lost: before the first one whose name comes after its own."""
    later = [at for at, one in enumerate(result.named) if one.name and natural(one.name) > natural(source.name)]
    return min(later, default=len(result.named))


def _place_task(source: SourceCell, result: Restored) -> None:
    """Put the task's own text in its place. What a student wrote into its cell becomes a cell of their own below."""
    notes, all_cells = result.notes.setdefault(source.name, []), result.named
    copies, task = result.places(source.name), Named(source.cell(), source.name)
    if not copies:
        notes.append("The cell of the task was missing and has been put back.")
        all_cells.insert(_before_later(source, result), task)
        return
    released = visible_part(source.source).strip()
    for at in reversed(copies):
        all_cells[at].name = None
        if all_cells[at].cell.source.strip() == released:
            del all_cells[at]
        elif not notes:
            notes.append("The cell of the task had been changed; what was in it stands below it.")
    all_cells.insert(copies[0], task)


def _defining(source: SourceCell, result: Restored) -> list[int]:
    """The places of code cells that define a function or class of an answer whose cell has lost its name."""
    return [at for at, cell in enumerate(result.cells) if cell.cell_type == "code" and _defines(source, cell.source)]


def _defines(source: SourceCell, text: str) -> bool:
    """Does a code cell's text define a function or class of this answer?"""
    starts = DEFINITION.findall(source.source)
    if not starts or source.cell_type != "code":
        return False
    name = "|".join(map(re.escape, starts))
    # Read as text: a cell with an error in its syntax, or with a magic command, is the student's answer as well.
    return bool(re.search(rf"^(?:(?:async +def|def|class) +(?:{name})\b|(?:{name}) *=(?!=))", text, re.MULTILINE))


def _place_test(source: SourceCell, result: Restored) -> None:
    notes, all_cells = result.notes.setdefault(source.name, []), result.named
    answer = next(iter(result.places(answer_of(source.name))), len(all_cells) - 1)
    copies = result.places(source.name)
    test = Named(source.cell(), source.name)
    if not copies:
        notes.append(PUT_BACK)
        all_cells.insert(answer + 1, test)
        return
    released = visible_part(source.source).strip()
    if any(all_cells[at].cell.cell_type != "code" for at in copies):
        notes.append("The test cell had been turned into text; the original was run.")
    elif texts := {text for at in copies if (text := all_cells[at].cell.source.strip()) != released}:
        is_earlier = {_digest(text) for text in texts} <= set(source.earlier)
        notes.append(EARLIER if is_earlier else "The test cell had been changed; the original was run.")
    if len(copies) > 1:
        notes.append("The test cell was there several times; it was run once.")
    behind = [at for at in copies if at > answer]
    if not behind:
        notes.append("The test cell came before the answer; it was run after the answer.")
        all_cells.insert(answer + 1, test)
    else:
        all_cells[behind[0]] = test
    for at in reversed(copies):
        if all_cells[at] is not test:
            del all_cells[at]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def add_earlier(earlier: dict[str, list[str]], sources: Iterable[SourceCell]) -> None:
    """Note a version of a lesson that will be an earlier one. earlier: test → digests of what students got of it."""
    for test in (one for one in sources if one.is_test):
        digest = _digest(visible_part(test.source).strip())
        earlier[test.name] = [*(one for one in earlier.get(test.name, []) if one != digest), digest]


def visible_part(source: str) -> str:
    """A test cell's source without its hidden tests, or a task's without its mark scheme, as students get it."""
    return _parts(source)[0]


def mark_scheme(source: str) -> str:
    """What a task says to those who grade it."""
    return _parts(source)[1].strip()


def _parts(source: str) -> tuple[str, str]:
    """What students get of a cell, and what they do not."""
    parts: tuple[list[str], list[str]] = ([], [])
    hidden = False
    for line in source.split("\n"):
        if re.search("BEGIN (HIDDEN TESTS|MARK SCHEME)", line):
            hidden = True
        elif re.search("END (HIDDEN TESTS|MARK SCHEME)", line):
            hidden = False
        else:
            parts[hidden].append(line)
    return "\n".join(parts[0]), "\n".join(parts[1])


def _name(cell: nbformat.NotebookNode, known: dict[str, SourceCell]) -> str | None:
    """The answer or test that a submitted cell is: by nbgrader's metadata, or by its cell id."""
    meta = cell.metadata.get("nbgrader")
    claimed = meta.get("grade_id") if isinstance(meta, dict) else None
    for name in (claimed, cell.get("id")):
        if isinstance(name, str) and name in known:
            return name
    return None


def _name_by_text(result: Restored, known: dict[str, SourceCell]) -> None:
    """Name the test cells that have lost nbgrader's metadata and their ids, but not their text."""
    lost = [test for test in known.values() if test.is_test and not result.places(test.name)]
    by_text = {visible_part(test.source).strip(): test.name for test in lost}
    for one in result.named:
        if one.name is None and one.cell.source.strip():
            one.name = by_text.get(one.cell.source.strip())


def _name_merged(result: Restored, known: dict[str, SourceCell]) -> None:
    """Name a test's cell after a lost answer that was merged into it; the test itself is put back."""
    for source in known.values():
        if source.is_test or result.places(source.name):
            continue
        for at in _defining(source, result):
            test = known.get(result.named[at].name or "")
            if test is not None and test.is_test and not _defines(source, visible_part(test.source)):
                result.named[at].name = source.name


def _ids(number: int) -> Iterator[str]:
    yield f"own-{number}"
    copy = 0
    while True:
        copy += 1
        yield f"own-{number}-{copy}"


def restored_notebook(
    submitted: nbformat.NotebookNode, sources: list[SourceCell], lesson: nbformat.NotebookNode
) -> nbformat.NotebookNode:
    """The notebook to grade: a submission's cells, the gradebook's, and the lesson's setup cells that were lost.

    submitted: as `reading` returns it. Where it has a problem, only the gradebook's cells.
    """
    whole = outcome.of_notebook(submitted)
    problem = whole.problem
    restored = restore([] if problem else submitted.cells, sources)
    cells = restored.cells
    functions = {source.test: source.functions for source in sources if not source.is_test}
    for cell in cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        ours = outcome.CellOutcome()
        if name is not None:
            ours.notes = [] if problem else restored.notes.get(name, [])
            ours.unwritten = answer_of(name) in restored.unwritten
            ours.functions = functions.get(name, [])
        outcome.to_metadata(cell, ours)
    shared = {cell.id: cell.metadata[adapted.SHARED] for cell in lesson.cells if adapted.SHARED in cell.metadata}
    pictures = {cell.id: cell.attachments for cell in lesson.cells if is_task(cell) and "attachments" in cell}
    for cell in cells:
        if cell.id in shared:
            cell.metadata[adapted.SHARED] = shared[cell.id]
        if cell.id in pictures:  # the gradebook keeps only the text
            cell.attachments = pictures[cell.id]
    if not problem:
        setup_cells.put_back(cells, lesson)
    whole.remarks += _of_another_lesson(submitted.cells, sources)
    known = {source.name for source in sources if source.earlier}
    if not problem and any(
        EARLIER in notes or (known and name not in known and PUT_BACK in notes)
        for name, notes in restored.notes.items()
    ):
        whole.remarks.append(OLDER)
    return notebook_of(cells, whole)


def _of_another_lesson(cells: list[nbformat.NotebookNode], sources: list[SourceCell]) -> list[str]:
    """A sentence if the exercises of a submission are all those of another lesson, by the numbers in their ids."""
    names = [cell.metadata.get("nbgrader", {}).get("grade_id") or cell.get("id") for cell in cells]
    numbers = [match[1] for name in names if (match := re.match(r"(\d+)-(?:ex|q)\d", str(name)))]
    own = {source.name.split("-")[0] for source in sources}
    if not numbers or own & set(numbers):
        return []
    others = ", ".join(sorted(set(numbers))[:3])
    return [f"This is the notebook of lesson {others}, not of {', '.join(sorted(own))}: hand in the right one."]


def source_cells(
    gradebook: Gradebook, notebook: str, assignment: str, before: dict[str, list[str]] | None = None
) -> list[SourceCell]:
    """The graded cells of an assignment's notebook, as `nbgrader generate_assignment` has stored them.

    before: test → digests of what students got of it in earlier versions.
    """
    stored = gradebook.find_notebook(notebook, assignment)
    points = {cell.name: cell.max_score for cell in (*stored.grade_cells, *stored.task_cells)}
    answers, tasks = ({cell.name for cell in cells} for cells in (stored.solution_cells, stored.task_cells))
    return [
        SourceCell(
            cell.name,
            cell.source,
            is_test=cell.name in points and cell.name not in answers | tasks,
            points=points.get(cell.name, 0.0),
            cell_type=cell.cell_type,
            by_hand=cell.name in points and cell.name in answers | tasks,
            is_task=cell.name in tasks,
            earlier=tuple((before or {}).get(cell.name, ())),
        )
        for cell in stored.source_cells
        if cell.name in points or cell.name in answers
    ]
