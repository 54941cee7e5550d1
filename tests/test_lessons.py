"""Nothing that belongs to an exercise or a lesson is forgotten: what is missing is named, and where to add it."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from autograder.answers import right, verdicts, wrong
from autograder.answers.answer import Answer
from autograder.authoring import new_lesson
from autograder.checking.check import REGISTERED, Check
from autograder.lessons import notebook
from tests.helpers.modules import import_checks

LESSONS = notebook.lessons()
#: The pages that list the lessons.
LISTS = (new_lesson.TOC, *new_lesson.TABLES)

#: (module, function) → what is declared.
Checks = dict[tuple[str, str], Check]

each_lesson = pytest.mark.parametrize("lesson", LESSONS)


# What is forgotten


def checks_of_nothing(cells: dict[str, Iterable], checks: Checks) -> list[str]:
    """The checks of an exercise that their lesson does not have. cells: of each lesson."""
    answers = {
        (name, one.id) for name, some in cells.items() for one in some if notebook.nbgrader_role(one) == "solution"
    }
    exercises = {(lesson.split("_", 1)[1], cell) for lesson, cell in answers}
    return [
        f"{one.place}: {one.name} is a check of {one.exercise}, which is no exercise of its lesson: "
        "correct its @check, or add the exercise to the notebook"
        for one in checks.values()
        if (one.topic, one.exercise) not in exercises
    ]


def missing_parts(
    lesson: str, cells: Iterable, checks: Checks, mistakes: list[Answer], others: list[Answer]
) -> list[str]:
    """The exercises without a check, a known wrong answer or another right one; and answers to no exercise."""
    exercises = [cell.id for cell in cells if notebook.nbgrader_role(cell) == "solution"]
    parts = {
        ("check", f"solutions/{lesson}/checks"): {one.exercise for one in checks.values()},
        ("known wrong answer", f"solutions/{lesson}/wrong.md"): {answer.cell for answer in mistakes},
        ("other right answer", f"solutions/{lesson}/right.py"): {answer.cell for answer in others},
    }
    found = [
        f"{one} has no {w}: add one to {where}"
        for one in exercises
        for (w, where), have in parts.items()
        if one not in have
    ]
    strange = [answer for answer in [*mistakes, *others] if answer.cell not in exercises]
    return found + [
        f"{one.name} answers {one.cell}, which is no exercise of {lesson}: correct its cell, or add it to the notebook"
        for one in strange
    ]


def wrong_points(lesson: str, cells: Iterable) -> list[str]:
    """What the title cell and the headings of the exercises say of points, where the test cells have others."""
    points = {c.id: c.metadata.nbgrader.points for c in cells if notebook.nbgrader_role(c) == "grade"}
    texts = {cell.id: cell.source for cell in cells if cell.cell_type == "markdown"}
    title, total = f"{lesson[:2]}-title", f"{sum(points.values()):g} points"
    found = []
    if not re.search(rf"· {total.removesuffix('s')}s?\b", texts.get(title, "")):
        found.append(f"{notebook.place(title)}: the exercises have {total} in all: write `· {total}` into the title")
    for test, worth in points.items():
        short = "-".join(test.split("-")[:2])
        heading = rf"^#+ Exercise {short.partition('-ex')[2]}\b.*\({worth:g} points?\)"
        if not re.search(heading, texts.get(short, ""), re.MULTILINE):
            found.append(
                f"{notebook.place(short)}: {test} has {worth:g} points: write `({worth:g} points)` into the heading"
            )
    return found


def without_example(cells: Iterable) -> list[str]:
    """The exercises that no cell shows at work: neither an answer nor a test."""
    codes = [cell for cell in cells if cell.cell_type == "code"]
    examples = {"-".join(cell.id.split("-")[:2]) for cell in codes if not notebook.nbgrader_role(cell)}
    answers = [cell.id for cell in codes if notebook.nbgrader_role(cell) == "solution"]
    return [
        f"{one} has no example: add a cell {short}-try that runs the answer"
        for one in answers
        if (short := "-".join(one.split("-")[:2])) not in examples
    ]


def strange_answers(checks: Checks, answers: list[Answer]) -> list[str]:
    """The known answers that are recorded to fail a check which their exercise lacks."""
    found = []
    for one in answers:
        own = {check.name for check in checks.values() if check.exercise == one.cell}
        strange = [name for name in one.fails if name not in own]
        there = f"no check of {one.cell}: its checks are {', '.join(sorted(own))}"
        found += [f"{one.name} is recorded to fail {name}, which is {there}" for name in strange]
    return found


def unlike_the_record(lesson: str, answers: list[Answer], recorded: Iterable[tuple[str, str]]) -> list[str]:
    """The wrong answers of which nothing is recorded, and what is recorded of answers that are no more."""
    known, there = {(one.cell, one.name) for one in answers}, set(recorded)
    todo = [(cell, name, "is not recorded") for cell, name in known - there]
    todo += [(cell, name, "is recorded, but no wrong answer") for cell, name in there - known]
    return [f"{name} {what}: make audit LESSONS={lesson[:2]} RECORD=1" for cell, name, what in sorted(todo)]


def missing_files(lesson: str, root: Path) -> list[str]:
    """The files of a lesson that are not in the repository in `root`."""
    places = [place.format(lesson=lesson) for place in new_lesson.FILES.values()]
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
    import_checks()
    return {key: one for key, one in REGISTERED.items() if key[0].startswith("autograder.checks.")}


def complain(found: list[str]) -> None:
    """Fail with these sentences alone: pytest's own account of an assertion hides them, and cuts long ones."""
    if found:
        pytest.fail("\n".join(found), pytrace=False)


@each_lesson
def test_each_known_answer_can_be_read(lesson):
    try:
        assert wrong.of_lesson(lesson) and right.of_lesson(lesson)
    except ValueError as error:
        complain([str(error)])


def test_each_check_is_one_of_an_exercise():
    complain(checks_of_nothing({lesson: notebook.read(lesson).cells for lesson in LESSONS}, checks()))


@each_lesson
def test_each_exercise_has_all_its_parts(lesson):
    known = wrong.of_lesson(lesson), right.of_lesson(lesson)
    complain(missing_parts(lesson, notebook.read(lesson).cells, checks(), *known))


@each_lesson
def test_the_points_in_a_lessons_texts_are_those_of_its_tests(lesson):
    complain(wrong_points(lesson, notebook.read(lesson).cells))


#: Exercises whose answer the exercises after them show at work.
LATER = {"13-ex4-backward", "17-ex3-invariants"}


@each_lesson
def test_each_exercise_has_an_example_to_run(lesson):
    found = without_example(notebook.read(lesson).cells)
    complain([line for line in found if line.split()[0] not in LATER])


@each_lesson
def test_each_wrong_answer_is_recorded_and_fails_checks_that_exist(lesson):
    complain(unlike_the_record(lesson, wrong.of_lesson(lesson), verdicts.read(lesson)))
    complain(strange_answers(checks(), wrong.of_lesson(lesson)))


@each_lesson
def test_each_lesson_has_its_files(lesson):
    complain(missing_files(lesson, notebook.ROOT))


@each_lesson
def test_each_lesson_is_listed(lesson):
    complain(missing_in_lists(lesson, {name: (notebook.ROOT / name).read_text() for name in LISTS}))


# What was forgotten would be noticed

LESSON, EXERCISE = "08_zero1", "08-ex1-shard-bounds"


def holds(answer, *, rng):
    """A check of this lesson."""


holds.__module__ = "autograder.checks.zero1.shards"


@pytest.mark.parametrize("exercise", ["08-ex7-no-such", "09-ex2-unit"])
def test_a_check_of_no_exercise_of_its_lesson_is_named(exercise):
    cells = {lesson: notebook.read(lesson).cells for lesson in (LESSON, "09_fsdp")}
    known = {("zero1", "holds"): Check(EXERCISE, 1, False, holds)}
    assert not checks_of_nothing(cells, known)
    (said,) = checks_of_nothing(cells, known | {("zero1", "strange"): Check(exercise, 1, False, holds)})
    assert re.fullmatch(
        rf"tests/test_lessons\.py:\d+: holds is a check of {exercise}, which is no exercise of its lesson: correct its "
        "@check, or add the exercise to the notebook",
        said,
    )


def test_an_exercise_without_a_part_is_named():
    cells = notebook.read(LESSON).cells
    known = wrong.of_lesson(LESSON), right.of_lesson(LESSON)
    mistakes, other_ways = ([answer for answer in kind if answer.cell != EXERCISE] for kind in known)
    others = {key: one for key, one in checks().items() if one.exercise != EXERCISE}
    assert missing_parts(LESSON, cells, others, mistakes, other_ways) == [
        f"{EXERCISE} has no check: add one to solutions/08_zero1/checks",
        f"{EXERCISE} has no known wrong answer: add one to solutions/08_zero1/wrong.md",
        f"{EXERCISE} has no other right answer: add one to solutions/08_zero1/right.py",
    ]
    assert not missing_parts(LESSON, cells, checks(), *known)


def test_points_that_do_not_agree_are_named():
    cells = copy.deepcopy(notebook.read(LESSON).cells)
    assert not wrong_points(LESSON, cells)
    total = sum(cell.metadata.nbgrader.points for cell in cells if notebook.nbgrader_role(cell) == "grade")
    test = next(cell for cell in cells if cell.id == f"{EXERCISE}-test")
    test.metadata.nbgrader.points += 1.5
    worth = test.metadata.nbgrader.points
    assert wrong_points(LESSON, cells) == [
        f"{notebook.place('08-title')}: the exercises have {total + 1.5:g} points in all: "
        f"write `· {total + 1.5:g} points` into the title",
        f"{notebook.place('08-ex1')}: {EXERCISE}-test has {worth:g} points: "
        f"write `({worth:g} points)` into the heading",
    ]


def test_an_exercise_without_an_example_is_named():
    cells = [cell for cell in notebook.read(LESSON).cells if not re.match("08-ex1-(?!shard-bounds)", cell.id)]
    assert without_example(cells) == [f"{EXERCISE} has no example: add a cell 08-ex1-try that runs the answer"]


def test_an_answer_with_a_check_that_is_none_is_named():
    answer = Answer("rounds_up", LESSON, EXERCISE, "", "", (f"{EXERCISE}-test",), ("no_such_check",))
    assert strange_answers({("zero1", "holds"): Check(EXERCISE, 1, False, holds)}, [answer]) == [
        f"rounds_up is recorded to fail no_such_check, which is no check of {EXERCISE}: its checks are holds"
    ]


def test_an_answer_without_a_record_and_a_record_without_an_answer_are_named():
    answer = Answer("rounds_up", LESSON, EXERCISE, "", "")
    assert unlike_the_record(LESSON, [answer], [(EXERCISE, "rounds_down")]) == [
        "rounds_down is recorded, but no wrong answer: make audit LESSONS=08 RECORD=1",
        "rounds_up is not recorded: make audit LESSONS=08 RECORD=1",
    ]


def test_an_answer_to_no_exercise_is_named():
    cells = [cell for cell in notebook.read(LESSON).cells if cell.id != EXERCISE]
    complaints = missing_parts(LESSON, cells, checks(), wrong.of_lesson(LESSON), [])
    assert (
        f"bounds_round_down answers {EXERCISE}, which is no exercise of 08_zero1: correct its cell, "
        "or add it to the notebook"
    ) in complaints


def test_a_lesson_without_a_file_is_named(tmp_path):
    assert missing_files("98_tiny", tmp_path) == [
        "98_tiny has no solutions/98_tiny/98_tiny.ipynb: add it",
        "98_tiny has no solutions/98_tiny/checks.py: add it",
        "98_tiny has no solutions/98_tiny/wrong.md: add it",
        "98_tiny has no solutions/98_tiny/verdicts.txt: add it",
        "98_tiny has no solutions/98_tiny/right.py: add it",
        "98_tiny has no book/98_tiny.md: add it",
    ]
    package = tmp_path / "solutions" / "98_tiny" / "checks"
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
