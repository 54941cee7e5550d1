"""Known wrong answers: the mistakes that people really make, each with the hint that helps.

`autograder/answers/mutants/<topic>.py` holds those of lesson `NN_<topic>`, the subtle ones first; where they are many,
`<topic>/` holds them in several modules. A mutant is the body of a decorated function: it replaces one solution cell
whole, and its docstring is the hint::

    @mutant("03-ex1-worker-gradient", breaks=tests_of("03-ex1-worker-gradient", ...))
    def sums_the_micro_batches():
        '''You added the gradients of the micro-batches; the batch gradient is their mean. Divide by ...'''
        def worker_gradient(x, y, w):
            ...

A mistake that changes a few lines is written as those lines: an edit of the solution, or of another answer to the
same cell (`base`)::

    gradients_are_summed = edit(
        "08-ex3-step",
        '''The reduce-scatter adds up the ranks' gradients; the step needs their mean. ...''',
        ("            self.gradient /= world_size\\n", ""),
        breaks=tests_of("08-ex3-step", ...),
    )

Where many mistakes start from another spelling than the solution's, that spelling is written once, with `@right` and
a name that begins with an underscore: it is a base, and no mutant.

`breaks` lists every grade cell that loses marks: the exercise itself and those that build on it. `fails` lists the
checks of its own exercise that a mutant fails; one without it fails the core, and then nothing else is tried.
`make audit` checks that these fail, that no other does, and that the message shows this very hint: hints are searched
for only among the answers that fail a check. No two mutants of an exercise have the same hint: a class's mistakes are
counted by it.
"""

from __future__ import annotations

from autograder.answers.answer import Answer, decorator, edit, load
from autograder.lessons.notebook import lesson_of

__all__ = ["edit", "mutant", "of_exercise", "of_lesson", "right", "tests_of"]

mutant = decorator("mutants")
right = decorator("variants")


def tests_of(*exercises: str) -> list[str]:
    """The grade cells of these exercises, for `breaks`."""
    return [f"{exercise}-test" for exercise in exercises]


def of_lesson(lesson: str) -> list[Answer]:
    """All mutants of a lesson, in the order in which they are written."""
    return load("mutants", lesson)


def of_exercise(exercise: str) -> list[Answer]:
    """The mutants that replace the solution cell `exercise`."""
    return [mutant for mutant in of_lesson(lesson_of(exercise)) if mutant.cell == exercise]
