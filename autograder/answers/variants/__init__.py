"""Known other right answers: the same contract met in another way. None of them may lose a mark.

`autograder/answers/variants/<topic>.py` holds those of lesson `NN_<topic>`. A variant is written like a mutant
(see `autograder.answers.mutants`); its docstring says in what it differs from the solution.
"""

from __future__ import annotations

from autograder.answers.answer import Answer, decorator, load

variant = decorator("variants")


def of_lesson(lesson: str) -> list[Answer]:
    """All variants of a lesson, in the order in which they are written."""
    return load("variants", lesson)
