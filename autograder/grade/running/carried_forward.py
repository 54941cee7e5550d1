"""Errors carried forward: a property that fails only because of another exercise keeps its marks.

Exercises build on one another: the optimizer of exercise 3 calls the function of exercise 1. After a submission has
run, each exercise that failed and that builds on another failed one is tried again in a fresh kernel, in which the
lesson's own answers to those others are defined after the student's. Each property that holds there has its marks.
A class of the lesson's then also has the methods and attributes that only the student's has (`take_over`). What a
student's answer takes from another one besides, such as a helper function, cannot be replaced: a note says so.

Of this second run the student learns only whether each property held: not its outputs, errors or times, because the
code that runs there can read the lesson's answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import nbformat
from nbformat.v4 import new_code_cell

from autograder.grade import limits as bounds
from autograder.grade.outcome import ERROR, OK, OUT_OF_TIME, CellOutcome, Tried
from autograder.grade.running import clock
from autograder.grade.running.kernels import Kernel
from autograder.grade.running.run_cells import Limits, is_test, run_cells
from autograder.grade.running.take_over import cells_around
from autograder.lesson import names, notebook
from autograder.lesson.notebook import answer_of, natural

#: A note on an exercise that fails and uses helpers of the student's that stand in another one that fails.
NOT_REPLACED = (
    "It uses {} from your answer to an exercise that fails, too. If the error is there, these points are lost twice: "
    "show it to your instructor."
)

#: What stands where an answer is not written yet.
STUB = f"raise {notebook.STUB}("


def try_again(
    cells: list[nbformat.NotebookNode],
    outcomes: dict[str, CellOutcome],
    lesson: nbformat.NotebookNode,
    new_kernel: Callable[[], Kernel],
    limits: Limits,
) -> None:
    """Try failed exercises again with the lesson's answers to the failed exercises on which they build.

    The lesson's answers may need more of each other than the statements ask for, such as an attribute of a base class.
    What does not hold then is tried once more with the lesson's answers to all exercises on which it builds. So is at
    once an exercise that was stopped by a limit of time and builds on no failed one: another answer may be too slow.

    cells, outcomes: as `run_cells` leaves them. A property that holds now is `carried`, and loses what the first run
    said of it. One that still does not hold has an `own_error_beside`, or its test a note (`_helpers`). What held in
    the first run must hold again.
    """
    tests = {answer_of(test.id): outcomes[test.id] for test in cells if is_test(test)}
    failed = {name for name, test in tests.items() if test.status != OK}
    builds = names.builds_on(failed, cells, lesson)
    slow = {name for name in failed if tests[name].met_limit}
    needs = {name: needed & failed or (needed if name in slow else set()) for name, needed in builds.items()}
    sources = {cell.id: cell.source for cell in cells}
    faulty = {name for name in failed if not needs[name] or STUB in sources.get(name, STUB)}
    right: set[str] = set()
    waiting = sorted(failed - faulty)
    until = clock.now() + limits.notebook

    def holding(exercises: list[str], replaced: set[str]) -> tuple[dict[str, set[str]], bool]:
        # A limit for all second runs together. Each exercise that still waits has its part of what is left.
        part = max(0.0, until - clock.now()) * len(exercises) / len(waiting)
        return _holding(exercises, replaced, cells, outcomes, lesson, new_kernel, replace(limits, notebook=part))

    while waiting and clock.now() < until:
        # An exercise is tried when it is known which of those on which it builds are faulty; in a circle, the first is.
        ready = [name for name in waiting if needs[name] & failed <= faulty | right] or waiting[:1]
        replaced = {name: needs[name] - right for name in ready}
        ready = _without_later_answers(ready, replaced, cells)
        given = set().union(*(replaced[name] for name in ready))
        held_again, in_time = holding(ready, given)
        for name in ready:
            tried = tests[name].properties
            held = _names(tried)
            holds = _of_one_answer(held, held_again[name])
            if builds[name] - given and {one.name for one in tried} - held - holds:
                also, in_time_too = holding([name], builds[name])
                holds, in_time = max(holds, _of_one_answer(held, also[name]), key=len), in_time and in_time_too
            told = bool(holds >= held and in_time and replaced[name] & failed)
            helpers = _helpers(name, replaced[name] & failed, cells, lesson)
            is_right = _carry(tests[name], holds, sorted(replaced[name]), told and not helpers)
            if helpers and not is_right:  # once, though all is tried twice after a limit of time
                notes = [*tests[name].notes, NOT_REPLACED.format(bounds.listed(helpers))]
                tests[name].notes = list(dict.fromkeys(notes))
            (right if is_right else faulty).add(name)
        waiting = [name for name in waiting if name not in ready]


def _helpers(
    exercise: str, others: set[str], cells: list[nbformat.NotebookNode], lesson: nbformat.NotebookNode
) -> list[str]:
    """The names that an answer reads from other answers, and that the lesson's own answers to those do not define."""
    student, ours = names.Names(cells), names.Names(lesson.cells)
    defined = (student.defines.get(other, set()) - ours.defines.get(other, set()) for other in others)
    return sorted(student.reads.get(exercise, set()) & set().union(*defined))


def _carry(test: CellOutcome, holds: set[str], because_of: list[str], told: bool) -> bool:
    """Give the properties that hold now their marks; whether all of the exercise's properties have theirs.

    because_of: the exercises that had made them fail. told: what does not hold now has an error of its own.
    """
    for at, one in enumerate(test.properties):
        if one.status != OK and one.name in holds:
            test.properties[at] = Tried(one.status, name=one.name, says=one.says, points=one.points, carried=because_of)
        elif one.status != OK and told:
            one.own_error_beside = because_of
    return test.passed


def _names(tried: list[Tried]) -> set[str]:
    """The properties that held in a run."""
    return {one.name for one in tried if one.status == OK}


def _of_one_answer(held: set[str], holding: set[str]) -> set[str]:
    """What holds in a second run, if what held in the first run is part of it; else nothing.

    An answer can see that the lesson's answers stand where its own did, and behave differently. It has marks for what
    it does, not for the best of each of its two behaviours.
    """
    return holding if held <= holding else set()


def _without_later_answers(
    ready: list[str], replaced: dict[str, set[str]], cells: list[nbformat.NotebookNode]
) -> list[str]:
    """Those that can be tried in one run, the first among them: all, in a notebook in the lesson's order.

    In another order, the lesson's answer to a later exercise could stand above the test of an earlier one, which does
    not build on it, and do its work.
    """
    place = {cell.id: number for number, cell in enumerate(cells)}

    def is_helped(name: str, others: set[str]) -> bool:
        test = place[f"{name}-test"]
        return any(natural(other) > natural(name) and place[other] < test for other in others - replaced[name])

    together: list[str] = []
    for name in ready:
        given = set().union(replaced[name], *(replaced[other] for other in together))
        if not any(is_helped(other, given) for other in [*together, name]):
            together.append(name)
    return together


def _holding(
    exercises: list[str],
    replaced: set[str],
    cells: list[nbformat.NotebookNode],
    outcomes: dict[str, CellOutcome],
    lesson: nbformat.NotebookNode,
    new_kernel: Callable[[], Kernel],
    limits: Limits,
) -> tuple[dict[str, set[str]], bool]:
    """Which properties of these exercises hold with the lesson's answers to the `replaced` ones.

    And was there time for all cells? If not, what does not hold says nothing.
    """
    ours = {cell.id: cell.source for cell in lesson.cells}
    run: list[nbformat.NotebookNode] = []
    for cell in cells:
        if cell.cell_type != "code" or (is_test(cell) and answer_of(cell.id) not in exercises):
            continue
        if is_test(cell) or outcomes[cell.id].status in (OK, ERROR):  # not what hung or ended the kernel
            copy = new_code_cell(cell.source, id=cell.id)
            copy.metadata.update({key: cell.metadata[key] for key in ["nbgrader"] if key in cell.metadata})
            run.append(copy)
        if cell.id in replaced:
            # After the student's cell, which may define more than the exercise asks for.
            before, after = cells_around(ours[cell.id])
            for number, source in enumerate(filter(None, (before, ours[cell.id], after))):
                run.append(new_code_cell(source, id=f"{cell.id}-of-the-lesson-{number}"))
    found = run_cells(run, new_kernel, limits)
    holds = {answer_of(cell.id): _names(found[cell.id].properties) for cell in run if is_test(cell)}
    return holds, not any(one.status == OUT_OF_TIME or one.left_out for one in found.values())
