"""Every grading draws new inputs: a right answer must keep all its marks however often it is graded."""

from __future__ import annotations

from autograder.answers import right
from autograder.audit import audit
from autograder.grade.nbgrader import scoring
from autograder.lesson import notebook


def right_answers(lesson: str) -> list[str]:
    """The names of the answers that `keeps_all_marks` takes."""
    return ["solution", *(answer.name for answer in right.load_right(lesson))]


def keeps_all_marks(lesson: str, name: str, times: int = 10) -> None:
    """The solution, or the right answer of that name, is graded so often, and never loses a mark."""
    swap = {v.cell: v.source for v in right.load_right(lesson) if v.name == name}
    nb = notebook.read(lesson, swap)
    for _ in range(times):
        tests = audit.tested(nb, lesson)
        lost = {name: scoring.comment(test) for name, test in tests.items() if not test.passed}
        assert tests and not lost, lost
