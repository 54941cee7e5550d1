"""Nothing that belongs to an exercise or a lesson is forgotten: what is missing is named, and where to add it."""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import pkgutil
from collections.abc import Iterable
from pathlib import Path

import pytest

import autograder.checks
from autograder.answers import mutants, variants
from autograder.answers.answer import Answer
from autograder.authoring import new_lesson
from autograder.checking.check import REGISTERED
from autograder.lessons import notebook

LESSONS = notebook.lessons()
#: The pages that list the lessons.
LISTS = (new_lesson.TOC, *new_lesson.TABLES)

#: (module, function) → the exercise that it grades.
Checks = dict[tuple[str, str], str]

each_lesson = pytest.mark.parametrize("lesson", LESSONS)


# What is forgotten


def uncalled_checks(lesson: str, cells: Iterable, checks: Checks) -> list[str]:
    """The checks of a lesson that the test cell of their exercise does not call."""
    tests = {cell.id: cell.source for cell in cells if notebook.nbgrader_role(cell) == "grade"}
    found = []
    for (module, function), exercise in checks.items():
        if lesson.split("_")[0] != exercise.split("-")[0]:
            continue
        test, name = f"{exercise}-test", f"{module.split('.')[2]}.{function}"
        if test not in tests:
            strange = f"{name} is a check of {exercise}, which is no exercise of {lesson}"
            found.append(f"{strange}: correct its @check, or add the exercise to the notebook")
        elif function not in _called_in(tests[test]):
            found.append(f"{test} does not call {name}: add the call to its hidden tests")
    return found


def _called_in(source: str) -> set[str]:
    """The names of the functions that a cell calls, without what stands before the last dot."""
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {getattr(function, "attr", getattr(function, "id", "")) for function in calls}


def missing_parts(lesson: str, cells: Iterable, checks: Checks, wrong: list[Answer], right: list[Answer]) -> list[str]:
    """The exercises without a check, a known wrong answer or another right one; and answers to no exercise."""
    exercises = [cell.id for cell in cells if notebook.nbgrader_role(cell) == "solution"]
    topic = lesson.split("_", 1)[1]
    parts = {
        ("check", f"autograder/checks/{topic}"): set(checks.values()),
        ("known wrong answer", f"autograder/answers/mutants/{topic}"): {answer.cell for answer in wrong},
        ("other right answer", f"autograder/answers/variants/{topic}"): {answer.cell for answer in right},
    }
    found = [
        f"{one} has no {w}: add one to {where}"
        for one in exercises
        for (w, where), have in parts.items()
        if one not in have
    ]
    strange = [answer for answer in [*wrong, *right] if answer.cell not in exercises]
    return found + [
        f"{one.name} answers {one.cell}, which is no exercise of {lesson}: correct its cell, or add it to the notebook"
        for one in strange
    ]


def missing_files(lesson: str, root: Path) -> list[str]:
    """The files of a lesson that are not in the repository in `root`."""
    topic = lesson.split("_", 1)[1]
    places = [place.format(lesson=lesson, topic=topic) for place in new_lesson.FILES.values()]
    packages = {name: name.removesuffix(".py") for name in places}
    there = [(root / name).is_file() or (root / packages[name] / "__init__.py").is_file() for name in places]
    return [f"{lesson} has no {name}: add it" for name, found in zip(places, there, strict=True) if not found]


def missing_in_lists(lesson: str, pages: dict[str, str]) -> list[str]:
    """The pages that should list the lesson and do not. pages: each name in LISTS → its text."""
    found = []
    for name, text in pages.items():
        wanted = f"]({new_lesson.TABLES[name]}{lesson}.md)" if name in new_lesson.TABLES else f"file: book/{lesson}\n"
        if wanted not in text:
            found.append(
                f"{name} does not list {lesson}: add its chapter to {'the table' if '(' in wanted else 'a part'}"
            )
    return found


# Today nothing is


@functools.cache
def checks() -> Checks:
    """Every check of every lesson."""
    for module in pkgutil.walk_packages(autograder.checks.__path__, "autograder.checks."):
        importlib.import_module(module.name)
    return {key: exercise for key, exercise in REGISTERED.items() if key[0].startswith("autograder.checks.")}


@each_lesson
def test_each_check_is_called_in_the_test_cell_of_its_exercise(lesson):
    assert not uncalled_checks(lesson, notebook.read(lesson).cells, checks())


def test_each_check_belongs_to_a_lesson():
    numbers = {lesson.split("_")[0] for lesson in LESSONS}
    strange = {key: exercise for key, exercise in checks().items() if exercise.split("-")[0] not in numbers}
    assert not strange, "no lesson has these numbers: correct them in @check(…)"


@each_lesson
def test_each_exercise_has_all_its_parts(lesson):
    known = mutants.of_lesson(lesson), variants.of_lesson(lesson)
    assert not missing_parts(lesson, notebook.read(lesson).cells, checks(), *known)


@each_lesson
def test_each_lesson_has_its_files(lesson):
    assert not missing_files(lesson, notebook.ROOT)


@each_lesson
def test_each_lesson_is_listed(lesson):
    assert not missing_in_lists(lesson, {name: (notebook.ROOT / name).read_text() for name in LISTS})


# What was forgotten would be noticed

LESSON, EXERCISE = "08_zero1", "08-ex1-shard-bounds"


def test_a_check_that_is_not_called_is_named():
    cells = copy.deepcopy(notebook.read(LESSON).cells)
    test = next(cell for cell in cells if cell.id == f"{EXERCISE}-test")
    test.source = test.source.replace("zero1.bounds_cut_into_equal_shards(shard_bounds)\n", "")
    assert uncalled_checks(LESSON, cells, checks()) == [
        f"{EXERCISE}-test does not call zero1.bounds_cut_into_equal_shards: add the call to its hidden tests"
    ]


def test_a_check_of_no_exercise_is_named():
    strange = {("autograder.checks.zero1.shards", "holds"): "08-ex7-no-such"}
    assert uncalled_checks(LESSON, notebook.read(LESSON).cells, strange) == [
        "zero1.holds is a check of 08-ex7-no-such, which is no exercise of 08_zero1: "
        "correct its @check, or add the exercise to the notebook"
    ]


def test_an_exercise_without_a_part_is_named():
    cells = notebook.read(LESSON).cells
    known = mutants.of_lesson(LESSON), variants.of_lesson(LESSON)
    wrong, right = ([answer for answer in kind if answer.cell != EXERCISE] for kind in known)
    others = {key: exercise for key, exercise in checks().items() if exercise != EXERCISE}
    assert missing_parts(LESSON, cells, others, wrong, right) == [
        f"{EXERCISE} has no check: add one to autograder/checks/zero1",
        f"{EXERCISE} has no known wrong answer: add one to autograder/answers/mutants/zero1",
        f"{EXERCISE} has no other right answer: add one to autograder/answers/variants/zero1",
    ]
    assert not missing_parts(LESSON, cells, checks(), *known)


def test_an_answer_to_no_exercise_is_named():
    cells = [cell for cell in notebook.read(LESSON).cells if cell.id != EXERCISE]
    complaints = missing_parts(LESSON, cells, checks(), mutants.of_lesson(LESSON), [])
    assert (
        f"bounds_round_down answers {EXERCISE}, which is no exercise of 08_zero1: correct its cell, "
        "or add it to the notebook"
    ) in complaints


def test_a_lesson_without_a_file_is_named(tmp_path):
    assert missing_files("98_tiny", tmp_path) == [
        "98_tiny has no solutions/98_tiny/98_tiny.ipynb: add it",
        "98_tiny has no autograder/checks/tiny.py: add it",
        "98_tiny has no autograder/answers/mutants/tiny.py: add it",
        "98_tiny has no autograder/answers/variants/tiny.py: add it",
        "98_tiny has no book/98_tiny.md: add it",
    ]
    package = tmp_path / "autograder" / "checks" / "tiny"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert not any("checks" in complaint for complaint in missing_files("98_tiny", tmp_path))


def test_a_lesson_that_is_not_listed_is_named():
    texts = {name: (notebook.ROOT / name).read_text().replace(LESSON, "08_zero") for name in LISTS}
    assert missing_in_lists(LESSON, texts) == [
        "_toc.yml does not list 08_zero1: add its chapter to a part",
        "README.md does not list 08_zero1: add its chapter to the table",
        "book/index.md does not list 08_zero1: add its chapter to the table",
    ]
