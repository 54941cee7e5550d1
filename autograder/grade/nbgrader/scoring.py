"""Scores: the points of the properties that hold, and for each other one why it does not hold.

A property that fails only because of an error in another exercise has its points, too (`carried_forward`).

nbgrader looks at the outputs instead: anything on stderr costs all points, and a displayed number earns some.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import nbformat
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor

from autograder import properties
from autograder.checks.check import NOT_WRITTEN_YET
from autograder.checks.expect import DIED, UNWRITTEN, WRONG, Failure, with_case
from autograder.grade import limits, outcome
from autograder.grade import record as records
from autograder.grade.nbgrader import late, library, view
from autograder.grade.outcome import OUT_OF_TIME, OUTDATED, TIMEOUT, CellOutcome, Outcome, Tried
from autograder.grade.record import Entry, Record
from autograder.grade.running.run_cells import is_test
from autograder.lesson import course_settings
from autograder.lesson.notebook import answer_of, nbgrader_role

#: The message about a property is cut after this many characters.
MAX_MESSAGE = 2000

#: The end of a syntax error's text: the kernel's name for the cell, and the line.
CELL = re.compile(r" \((?:\d+\.py|<ipython-input-[^>]*>), line (\d+)\)$")


class Reason(NamedTuple):
    """Why properties do not hold: those that failed in the same way, what there is to say, and hints.

    sure: is there one hint, of a mistake that was hardly another one?
    """

    outcomes: list[Tried]
    message: str
    hints: list[str]
    sure: bool = False


def comment(test: CellOutcome, answer: CellOutcome | None = None, problem: str = "") -> str:
    """Why a test lacks points, for the record; "" if all properties hold. problem: why the notebook was not run."""
    if problem:
        return problem
    texts = [
        "\n".join([one.message, *(f"{'Hint' if one.sure else 'Perhaps'}: {hint}" for hint in one.hints)])
        for one in reasons(test, answer)
    ]
    return "\n\n".join([*texts, *remarks(test)])


def reasons(test: CellOutcome, answer: CellOutcome | None) -> list[Reason]:
    """Why properties do not hold, those with the same message and hints together.

    The first also tells of the answer's own cell, if that did not run to its end.
    """
    found: dict[tuple, Reason] = {}
    stopped = answer.why_stopped if answer is not None else None
    about = _about_answer(stopped) if stopped else ""
    for one in test.lost:
        failure = one.reason
        # A name is not there because the cell that defines it was left out: that explains the error.
        left_out = stopped is not None and stopped.kind in STOPPED
        missing = left_out and not failure.check and failure.error == "NameError"
        text = "" if missing else why(failure, test.unwritten)[:MAX_MESSAGE]
        hints = list(dict.fromkeys(hint.text for hint in failure.hints))
        sure = len(hints) == 1 and all(hint.sure for hint in failure.hints)
        found.setdefault((text, *hints), Reason([], text, hints, sure)).outcomes.append(one)
    return [
        one._replace(message=f"{about} {one.message}".strip() if number == 0 or not one.message else one.message)
        for number, one in enumerate(found.values())
    ]


def remarks(test: CellOutcome) -> list[str]:
    """What there is to say of an exercise besides the properties that do not hold, a sentence each."""
    tried = test.properties
    carried = sorted({name for one in tried for name in one.carried})
    if carried and test.passed:
        return [f"Right: it failed only because of {_numbered(carried)}"]
    said = [f"The rest failed only because of {_numbered(carried)}"] if carried else []
    own = [one for one in tried if one.own_error_beside]
    if others := sorted({name for one in own for name in one.own_error_beside}):
        what = "What still fails does so" if carried else "It fails"
        if all(one.says for one in own):
            what = f"{limits.listed(f'“{one.says}”' for one in own)} fail{'s' * (len(own) == 1)}"
        answers = f"the lesson's answer{'s' if len(others) > 1 else ''} to {_listed(others)}"
        said.append(
            f"{what} with {answers} in place of yours as well: there is an error here, too. The reason above was found "
            f"with yours, and may be theirs; correct {_listed(others)} and hand in again to see the other."
        )
    if any(one.points for one in tried if one.holds) and not test.score:
        without = "Without the core of the exercise, the other properties earn no points."
        said.append(
            without
            if test.all_or_nothing and not tried[0].holds
            else "An answer without the property that has no points of its own earns none."
        )
    if len(tried) > 1 and [one.name for one in tried if not one.holds] == [properties.VISIBLE]:
        said.append("Only the visible part of the test fails, which costs a tenth of the points.")
    if any(one.tries for one in tried if not one.holds):
        said.append("This is the result of a second try, during which nothing else was graded.")
    return said


def why(failure: Failure, unwritten: bool = False) -> str:
    """Why a property does not hold. unwritten: its answer's cell holds the stub."""
    kind, error, message = failure.kind, failure.error, failure.message
    if kind in STOPPED and not message:
        return STOPPED[kind].format(what="the test", What="The test") + _details(failure)
    if kind == WRONG or (failure.check and kind != UNWRITTEN):
        return with_case(message, failure.case) or "One of the assertions in the test cell does not hold."
    if unwritten or kind == UNWRITTEN:
        return NOT_WRITTEN_YET
    if error == "BdbQuit":
        return "It stopped at breakpoint() or in pdb, which need a terminal: remove them before you hand in."
    return f"The test stopped with {error}: {message}" if message else f"The test stopped with {error}."


STOPPED = {
    TIMEOUT: "{What} did not end in the time allowed and was stopped: an endless loop, or ranks that wait "
    "for each other?",
    DIED: "Python itself ended during {what}: a call to exit, a crash, or too little memory?",
    OUT_OF_TIME: "{What} did not run to its end: with what ran before it, it took longer than the time allowed.",
    OUTDATED: "{What} failed, but an earlier version of the grader ran it, which kept no reason. Grade it again.",
}

#: For a submission that the autograder could not grade.
FAILED = "The autograder failed on this notebook; please ask your instructor."
#: For one that ended the process that graded it, also when it was graded by itself.
ENDED = (
    "This notebook took so much time or memory that the process that graded it ended. Let it return, show and send "
    "less, and hand it in again."
)


def _numbered(exercises: list[str]) -> str:
    """The end of a sentence on what failed at first only because of these exercises."""
    return f"{_listed(exercises)}. Fix {'that' if len(exercises) == 1 else 'those'} first."


def _listed(exercises: list[str]) -> str:
    """Exercises by their numbers: "exercises 1, 2 and 3"."""
    numbers = [re.sub(r"^\d+-ex(\d+)-.*", r"\1", name) for name in exercises]
    return f"exercise{'s' * (len(numbers) > 1)} {limits.listed(numbers)}"


def _details(failure: Failure) -> str:
    limit = f" The limit is {failure.limit:g} s." if failure.limit else ""
    return limit + (f" It was ended because {failure.why}." if failure.why else "")


def _about_answer(failure: Failure) -> str:
    """A sentence on an answer cell that did not run to its end."""
    if failure.kind in STOPPED:
        stopped = STOPPED[failure.kind].format(what="your answer cell", What="Your answer cell")
        return f"{stopped}{_details(failure)} It was left out."
    text = CELL.sub(r" (line \1)", failure.message)
    return f"Your answer cell stopped with {failure.error}: {text}."


#: Syntax that Python 3.11 does not know: since when, and how the error's text or its line looks.
NEWER = (
    ((3, 12), re.compile(r"^f-string")),
    ((3, 12), re.compile(r"^\s*((async\s+)?def|class)\s+\w+\s*\[|^\s*type\s+\w+\s*[\[=]")),
    ((3, 14), re.compile(r"^\s*except\*?\s+[\w.]+\s*,|\b[tT][rR]?[\"']")),
)
#: What the error says when a module of Python's own is an older one.
LACKS = re.compile(r"module '[\w.]+' has no attribute '|cannot import name '")


def about_python(nb: nbformat.NotebookNode) -> list[str]:
    """A sentence if cells may fail only because the student's Python is newer than this one."""
    here: tuple[int, ...] = sys.version_info[:2]
    theirs, newer = outcome.of_notebook(nb).python, dict[str, tuple[int, ...]]()
    saved_with = tuple(map(int, theirs.split("."))) if theirs else here
    for cell in nb.cells:
        found = outcome.of_metadata(cell)
        lost: Sequence[Outcome] = found.lost if is_test(cell) else [found]
        for failure in (one.failure for one in lost if one.failure):
            message, needs = failure.message, [here]
            if failure.error == "SyntaxError":
                at = CELL.search(message)
                line = "".join(cell.source.split("\n")[int(at[1]) - 1 : int(at[1])]) if at else ""
                needs += [saved_with, *(since for since, looks in NEWER if looks.search(message) or looks.search(line))]
            elif LACKS.search(message):
                needs.append(saved_with)
            if max(needs) > here:
                newer[answer_of(cell.id)] = max(needs)
    if not newer:
        return []
    exercises = [name for name in newer if re.match(r"\d+-ex\d", name)]
    what = _listed(exercises) if exercises else "a cell"
    ours, wanted = (".".join(map(str, version)) for version in (here, max(newer.values())))
    how = f"if it works there, write it for {ours} and hand it in again, or talk to your instructor"
    return [f"Notebooks are graded with Python {ours}, and {what} may be written for Python {wanted}: {how}."]


def is_question(cell: nbformat.NotebookNode) -> bool:
    """Is this a cell for which a person alone gives points?"""
    return nbgrader_role(cell) == "question"


def about_question(question: CellOutcome, problem: str = "") -> str:
    """Why a question needs no person to grade it, for the record; "" if it does."""
    return problem or ("Not answered." if question.unwritten else "")


class SaveScores(NbGraderPreprocessor):
    """Takes the place of nbgrader's SaveAutoGrades. Every exercise gets a final score, every question waits for one."""

    def preprocess(self, nb: nbformat.NotebookNode, resources: dict) -> tuple[nbformat.NotebookNode, dict]:
        """Write the scores and the sentences into the record, and the sentences into the notebook."""
        where, own = resources["nbgrader"], library.course_settings_of(self.config)
        found = {cell.id: outcome.of_metadata(cell) for cell in nb.cells}
        graded = {cell.id: cell for cell in nb.cells if is_test(cell) or is_question(cell)}
        whole = outcome.of_notebook(nb)
        for name, cell in graded.items():
            one = found[name]
            one.all_or_nothing = is_test(cell) and own.of(where["assignment"]).all_or_nothing
            one.comment = (
                comment(one, found.get(answer_of(name)), whole.problem)
                if is_test(cell)
                else about_question(one, whole.problem)
            )
            outcome.to_metadata(cell, one)
        whole.remarks += about_python(nb)
        outcome.to_metadata(nb, whole)
        job = where["student"], where["assignment"]
        with view.writing(CourseDirectory(config=self.config), job) as (record, _):
            save(record, *job, graded, where["changed"])
            record.at(where["assignment"], where["student"]).handed_in = where["handed_in"]
            late.write_penalties(record, self.config, own, where["student"])
        return nb, resources


class ReadGrades(NbGraderPreprocessor):
    """As nbgrader's GetGrades, from the record; it also says which scores by hand are for an earlier answer, and more.

    What waits for a score, how late the notebook was, by the course's own settings, and whether students see hints.
    """

    def preprocess(self, nb: nbformat.NotebookNode, resources: dict) -> tuple[nbformat.NotebookNode, dict]:
        """Put scores, comments and what `course.toml` says into the notebook and the resources."""
        course = CourseDirectory(config=self.config)
        where, own = resources["nbgrader"], course_settings.of(course.root)
        record, name, student = records.of(view.root_of(course)), where["assignment"], where["student"]
        lesson, submission = record.at(name), record.at(name, student)
        score = 0.0
        for cell in (cell for cell in nb.cells if "grade_id" in cell.metadata.get("nbgrader", {})):
            role, exercise = cell.metadata.nbgrader, answer_of(cell.metadata.nbgrader.grade_id)
            entry = submission.entries.get(exercise, Entry())
            if exercise in lesson.most and (is_test(cell) or is_question(cell)):
                score += entry.score
                role.update(score=entry.score, points=lesson.most[exercise], entered=entry.manual is not None)
                role["outdated"] = role["entered"] and entry.to_grade
                role["waits"] = is_question(cell) and entry.manual is None and entry.auto is None
            role["comment"] = entry.comment if entry.remark is None else entry.remark
        where["late_penalty"] = submission.penalty or 0
        where.update(score=score - where["late_penalty"], max_score=sum(lesson.most.values()))
        if own.has_dates():
            where["late"] = late.of_students(record, own, student)[student, name].words
        if not own.of(name).hints:
            for test in filter(is_test, nb.cells):
                found = outcome.of_metadata(test)
                for one in found.properties:
                    one.failure = one.failure and replace(one.failure, hints=[])
                outcome.to_metadata(test, found)
        return nb, resources


def save(
    record: Record,
    student: str,
    lesson: str,
    graded: dict[str, nbformat.NotebookNode],
    changed: Collection[str],
) -> None:
    """Write a score and a comment for every exercise that the gradebook knows into the record.

    A score given by hand is kept next to the new one and still takes precedence; if the answer is another one than
    before, the formgrader lists it once more, as it does each question until it has a score. graded: the tests and
    questions by name. changed: those of them whose answers are new.
    """
    lesson_record = record.at(lesson)
    for exercise, most in lesson_record.most.items():
        name = exercise if exercise in lesson_record.questions else f"{exercise}-test"
        ours, by_person = outcome.of_metadata(graded[name]), name == exercise
        entry = record.at(lesson, student, exercise)
        again = name in changed or entry.to_grade
        if by_person:  # what there is to say without a person means that there is nothing to grade
            entry.auto = 0.0 if ours.comment else None
        else:
            entry.auto = min(ours.score, most)
        entry.to_grade = again if entry.manual is not None else entry.auto is None
        entry.comment = ours.by_machine or None
