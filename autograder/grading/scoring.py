"""Scores: full points if and only if the test cell ran to its end, else none, and one sentence that says why.

An exercise that fails only because of an error in another one has its points, too (`carried`).

nbgrader looks at the outputs instead: anything on stderr costs all points, and a displayed number earns some.
"""

from __future__ import annotations

import re

import nbformat
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from autograder.grading.restore import answer_of
from autograder.grading.run_cells import is_test

#: A message is cut after this many characters.
MAX_MESSAGE = 2000

#: The end of a syntax error's text: the kernel's name for the cell, and the line.
CELL = re.compile(r" \((?:\d+\.py|<ipython-input-[^>]*>), line (\d+)\)$")


def passed(test: nbformat.NotebookNode) -> bool:
    """Did this test cell run to its end, perhaps in a second run without the errors of other exercises (`carried`)?"""
    ours = test.metadata.autograder
    return ours.get("status") == "ok" or bool(ours.get("carried"))


def reason(test: nbformat.NotebookNode, answer: nbformat.NotebookNode | None, problem: str = "") -> str:
    """Why a test has no points, for the student; '' if it passed. problem: why the notebook was not run."""
    if problem:
        return problem
    ours = test.metadata.autograder
    if ours.get("carried"):
        return _only_because_of(ours.carried)
    if passed(test):
        return ""
    status = ours.get("status", "out of time")
    name, text = ours.get("error") or ("", "")
    if name in ("CheckFailed", "AssertionError") and text:
        why = text
    elif name == "AssertionError":
        why = "One of the assertions in the test cell does not hold."
    elif status == "error" and (ours.get("unwritten") or name == "NotImplementedError"):
        return "This exercise is not written yet."
    elif status == "error":
        why = f"The test stopped with {name}: {text}" if text else f"The test stopped with {name}."
    else:
        why = STOPPED[status].format(what="the test", What="The test") + _known_cause(ours)
    about = _about_answer(answer)
    if name == "NameError" and about.endswith(LEFT_OUT):
        return about  # which explains the error
    return f"{about} {why}".strip()[:MAX_MESSAGE]


STOPPED = {
    "timeout": "{What} did not end in the time allowed and was stopped: an endless loop, or ranks that wait "
    "for each other?",
    "died": "Python itself ended during {what}: a call to exit, a crash, or too little memory?",
    "out of time": "{What} did not run to its end: the whole notebook took longer than the time allowed.",
}

LEFT_OUT = " It was left out."

#: For a submission that the autograder could not grade.
FAILED = "The autograder failed on this notebook; please ask your instructor."


def _only_because_of(exercises: list[str]) -> str:
    """The sentence for an exercise that has its marks although its test failed at first."""
    numbers = [re.sub(r"^\d+-ex(\d+)-.*", r"\1", name) for name in exercises]
    if len(numbers) == 1:
        return f"Right: it failed only because of exercise {numbers[0]}. Mend that first."
    listed = f"{', '.join(numbers[:-1])} and {numbers[-1]}"
    return f"Right: it failed only because of exercises {listed}. Mend those first."


def _known_cause(ours: dict) -> str:
    why = str(ours.get("why") or "")
    return f" It was ended because {why}." if why else ""


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
        return STOPPED[status].format(what="your answer cell", What="Your answer cell") + _known_cause(ours) + LEFT_OUT
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
        grade.auto_score = grade.max_score if passed(test) else 0.0
        grade.needs_manual_grade = False
        comment = comments.get(answer_of(grade.name))
        if comment is not None:
            ours = test.metadata.autograder
            comment.auto_comment = " ".join([*ours.get("notes", []), ours.reason]).strip() or None
    gradebook.db.commit()
