"""Known wrong answers: the mistakes that people really make, each with the hint that helps.

`autograder/answers/mutants/<topic>.py` holds those of lesson `NN_<topic>`, the subtle ones first. A mutant is the
body of a decorated function: it replaces one solution cell whole, and its docstring is the hint::

    @mutant(cell="03-ex1-worker-gradient", breaks=["03-ex1-worker-gradient-test", ...])
    def sums_the_micro_batches():
        '''You added the gradients of the micro-batches; the batch gradient is their mean. Divide by ...'''
        def worker_gradient(x, y, w):
            ...

Where a cell holds a whole class, a mistake is written as what it changes in the solution::

    gradients_are_summed = edit(
        "08-ex3-step",
        '''The reduce-scatter adds the ranks' gradients up; the step needs their mean. ...''',
        ("            self.gradient /= world_size\\n", ""),
        breaks=["08-ex3-step-test", ...],
    )

`breaks` lists every grade cell that loses its marks: the exercise itself and those that build on it.
`make audit` checks that these fail, that no other does, and that the message shows this very hint.
"""

from __future__ import annotations

from autograder.answers.answer import Answer, decorator, edit, load

__all__ = ["edit", "mutant", "of_exercise", "of_lesson", "tests_of"]

mutant = decorator("mutants")


def tests_of(*exercises: str) -> list[str]:
    """The grade cells of these exercises, for `breaks`."""
    return [f"{exercise}-test" for exercise in exercises]


def of_lesson(lesson: str) -> list[Answer]:
    """All mutants of a lesson, in the order in which they are written."""
    return load("mutants", lesson)


def of_exercise(exercise: str) -> list[Answer]:
    """The mutants that replace the solution cell `exercise`."""
    from autograder.lessons.notebook import lesson_of

    return [mutant for mutant in of_lesson(lesson_of(exercise)) if mutant.cell == exercise]
