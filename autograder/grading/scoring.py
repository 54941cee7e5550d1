"""Scores: the points of the properties that hold, none without the core, and for each other one why it does not hold.

A property that fails only because of an error in another exercise has its points, too (`carried`).

nbgrader looks at the outputs instead: anything on stderr costs all points, and a displayed number earns some.
"""

from __future__ import annotations

import re

import nbformat
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from autograder.checking.check import UNWRITTEN
from autograder.grading.run_cells import NOT_TRIED, is_test, is_unwritten
from autograder.lessons import properties
from autograder.lessons.notebook import answer_of

#: The message about a property is cut after this many characters.
MAX_MESSAGE = 2000

#: The end of a syntax error's text: the kernel's name for the cell, and the line.
CELL = re.compile(r" \((?:\d+\.py|<ipython-input-[^>]*>), line (\d+)\)$")


def outcomes_of(test: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """What became of each property of an exercise, the core first; none if its test was not run."""
    return test.metadata.autograder.get("properties", [])


def holds(outcome: dict) -> bool:
    """Does this property hold, perhaps in a second run without the errors of other exercises (`carried`)?"""
    return outcome.get("status") == "ok" or bool(outcome.get("carried"))


def passed(test: nbformat.NotebookNode) -> bool:
    """Do all properties of an exercise hold?"""
    return bool(outcomes_of(test)) and all(map(holds, outcomes_of(test)))


def score(test: nbformat.NotebookNode) -> float:
    """The points for the properties that hold; none without the core."""
    return properties.earned([(one.name, one.points, holds(one)) for one in outcomes_of(test)])


def reason(test: nbformat.NotebookNode, answer: nbformat.NotebookNode | None, problem: str = "") -> str:
    """Why a test lacks points, for the student; '' if all properties hold. problem: why the notebook was not run."""
    if problem:
        return problem
    failures = [text for _, text in reasons(test, answer)]
    return "\n\n".join([*failures, *remarks(test)])


def reasons(
    test: nbformat.NotebookNode, answer: nbformat.NotebookNode | None
) -> list[tuple[list[nbformat.NotebookNode], str]]:
    """Why properties do not hold: those that failed with the same message, and that message."""
    found: dict[str, list[nbformat.NotebookNode]] = {}
    about, unwritten = _about_answer(answer), bool(test.metadata.autograder.get("unwritten"))
    for one in outcomes_of(test):
        if not holds(one) and one.status != NOT_TRIED:
            found.setdefault(_why(one, about, unwritten)[:MAX_MESSAGE], []).append(one)
    return [(failed, text if number == 0 or text == about else text.removeprefix(f"{about} "))
            for number, (text, failed) in enumerate(found.items())]  # fmt: skip


def remarks(test: nbformat.NotebookNode) -> list[str]:
    """What there is to say of an exercise besides the properties that do not hold, a sentence each."""
    outcomes = outcomes_of(test)
    carried = sorted({name for one in outcomes for name in one.get("carried", [])})
    if carried and passed(test):
        return [f"Right: it failed only because of {_numbered(carried)}"]
    said = [f"The rest failed only because of {_numbered(carried)}"] if carried else []
    if outcomes and not holds(outcomes[0]) and any(one.points for one in outcomes if holds(one)):
        said.append("Without the core of the exercise, the other properties earn no points.")
    if len(outcomes) > 1 and [one.name for one in outcomes if not holds(one)] == [properties.VISIBLE]:
        said.append("Only the visible part of the test fails. No other property explains that, so it costs all points.")
    if any(one.get("tries") for one in outcomes if not holds(one)):
        said.append("This is the result of a second try, during which nothing else was graded.")
    return said


def _why(outcome: nbformat.NotebookNode, about: str, unwritten: bool) -> str:
    """Why a property does not hold. about: what became of the answer's cell itself. unwritten: it holds the stub."""
    status = outcome.status
    name, text = outcome.get("error") or ("", "")
    if name in ("CheckFailed", "AssertionError") and text:
        why = text
    elif name == "AssertionError":
        why = "One of the assertions in the test cell does not hold."
    elif status == "error" and (unwritten or is_unwritten(outcome)):
        return UNWRITTEN
    elif status == "error":
        why = f"The test stopped with {name}: {text}" if text else f"The test stopped with {name}."
    else:
        why = STOPPED[status].format(what="the test", What="The test") + _details(outcome)
    if name == "NameError" and about.endswith(LEFT_OUT):
        return about  # which explains the error
    return f"{about} {why}".strip()


STOPPED = {
    "timeout": "{What} did not end in the time allowed and was stopped: an endless loop, or ranks that wait "
    "for each other?",
    "died": "Python itself ended during {what}: a call to exit, a crash, or too little memory?",
    "out of time": "{What} did not run to its end: the whole notebook took longer than the time allowed.",
}

LEFT_OUT = " It was left out."

#: For a submission that the autograder could not grade.
FAILED = "The autograder failed on this notebook; please ask your instructor."
#: For one that ended the process that graded it, also when it was graded by itself.
ENDED = (
    "This notebook took so much time or memory that the process that graded it ended. Let it return, show and send "
    "less, and hand it in again."
)


def _numbered(exercises: list[str]) -> str:
    """The end of a sentence on what failed at first only because of these exercises."""
    numbers = [re.sub(r"^\d+-ex(\d+)-.*", r"\1", name) for name in exercises]
    if len(numbers) == 1:
        return f"exercise {numbers[0]}. Fix that first."
    return f"exercises {', '.join(numbers[:-1])} and {numbers[-1]}. Fix those first."


def _details(outcome: dict) -> str:
    why, limit = str(outcome.get("why") or ""), outcome.get("limit")
    return (f" The limit is {limit:g} s." if limit else "") + (f" It was ended because {why}." if why else "")


def _about_answer(answer: nbformat.NotebookNode | None) -> str:
    """A sentence if the answer cell itself did not run to its end, else ''."""
    if answer is None:
        return ""
    ours = answer.metadata.get("autograder", {})
    status = ours.get("status", "ok")
    if status == "error":
        name, text = ours.error
        text = CELL.sub(r" (line \1)", text)
        return "" if name == "NotImplementedError" else f"Your answer cell stopped with {name}: {text}."
    if status in STOPPED:
        return STOPPED[status].format(what="your answer cell", What="Your answer cell") + _details(ours) + LEFT_OUT
    return ""


class SaveScores(NbGraderPreprocessor):
    """Takes the place of nbgrader's SaveAutoGrades. Every exercise of the notebook gets a final score."""

    def preprocess(self, nb: nbformat.NotebookNode, resources: dict) -> tuple[nbformat.NotebookNode, dict]:
        """Write the scores and the sentences into the gradebook, and the sentences into the notebook."""
        where = resources["nbgrader"]
        ids = {cell.id: cell for cell in nb.cells}
        for test in filter(is_test, nb.cells):
            why = reason(test, ids.get(answer_of(test.id)), nb.metadata.autograder.problem)
            test.metadata.autograder.reason = why
        tests = {test.id: test for test in nb.cells if is_test(test)}
        with Gradebook(where["db_url"]) as gradebook:
            save(gradebook, where["notebook"], where["assignment"], where["student"], tests)
        return nb, resources


def save(
    gradebook: Gradebook, notebook: str, assignment: str, student: str, tests: dict[str, nbformat.NotebookNode]
) -> None:
    """Write a score and a comment for every exercise that the gradebook knows, in one transaction.

    A score given by hand is kept next to the new one and still takes precedence. No grade is left waiting for a score
    by hand.
    """
    submission = gradebook.find_submission_notebook(notebook, assignment, student)
    comments = {comment.name: comment for comment in submission.comments}
    for grade in submission.grades:
        test = tests[grade.name]
        grade.auto_score = min(score(test), grade.max_score)
        grade.needs_manual_grade = False
        comment = comments.get(answer_of(grade.name))
        if comment is not None:
            ours = test.metadata.autograder
            comment.auto_comment = " ".join([*ours.get("notes", []), ours.reason]).strip() or None
    gradebook.db.commit()
