"""Nothing that belongs to an exercise or a lesson is forgotten: what is missing is named, and where to add it."""

from __future__ import annotations

import copy
import functools
import re

import nbformat
import pytest

from autograder.answers import right, wrong
from autograder.answers.answer import Answer
from autograder.author import rules
from autograder.checks.check import REGISTERED, Check
from autograder.lesson import notebook
from tests.helpers.modules import import_checks

LESSONS = notebook.lessons()
#: The pages that list the lessons.
LISTS = (rules.TOC, *rules.TABLES)

each_lesson = pytest.mark.parametrize("lesson", LESSONS)


# Today nothing is


@functools.cache
def checks() -> list[Check]:
    """Every check of every lesson."""
    import_checks()
    return [one for (module, _), one in REGISTERED.items() if module.startswith("autograder.checks.")]


@each_lesson
def test_a_lesson_keeps_the_rules_has_its_files_and_is_listed(lesson):
    """With these sentences alone: pytest's own account of an assertion hides them, and cuts long ones."""
    found = rules.missing_files(lesson, notebook.ROOT)
    found += rules.missing_in_lists(lesson, {name: (notebook.ROOT / name).read_text() for name in LISTS})
    try:
        found += rules.lesson_problems(lesson)
    except ValueError as error:  # a file of known answers that cannot be read
        found.append(str(error))
    if found:
        pytest.fail("\n".join(found), pytrace=False)


#: A cell that a chapter shows, and the functions and classes that a cell defines.
SHOWN = re.compile(r"^```\{code-cell\} python\n(?!:tags: \[remove-)(.*?)^```", re.MULTILINE | re.DOTALL)
DEFINED = re.compile(r"^(?:def|class) (\w+)", re.MULTILINE)


@each_lesson
def test_a_chapter_does_not_define_what_an_exercise_asks_for(lesson):
    source = nbformat.read(notebook.ROOT / "solutions" / lesson / f"{lesson}.ipynb", as_version=4)
    asked = {
        name for cell in source.cells if "### BEGIN SOLUTION" in cell.source for name in DEFINED.findall(cell.source)
    }
    chapter = (notebook.ROOT / "book" / f"{lesson}.md").read_text(encoding="utf-8")
    assert asked and not asked & {name for cell in SHOWN.findall(chapter) for name in DEFINED.findall(cell)}


# What was forgotten would be noticed

LESSON, EXERCISE = "08_zero1", "08-ex1-shard-bounds"


def holds(answer, *, rng):
    """A check of this lesson."""


holds.__module__ = "autograder.checks.08_zero1.checks.shards"


def test_an_exercise_without_a_part_is_named():
    cells = notebook.read(LESSON).cells
    known = wrong.load_wrong(LESSON), right.load_right(LESSON)
    mistakes, other_ways = ([answer for answer in kind if answer.cell != EXERCISE] for kind in known)
    others = [one for one in checks() if one.exercise != EXERCISE]
    assert rules.missing_parts(LESSON, cells, others, mistakes, other_ways) == [
        f"{EXERCISE} has no check: add one to solutions/08_zero1/checks",
        f"{EXERCISE} has no known wrong answer: add one to solutions/08_zero1/wrong.md",
        f"{EXERCISE} has no other right answer: add one to solutions/08_zero1/right.py",
    ]
    assert not rules.missing_parts(LESSON, cells, checks(), *known)


def test_points_that_do_not_agree_are_named():
    cells = copy.deepcopy(notebook.read(LESSON).cells)
    assert not rules.wrong_points(LESSON, cells)
    total = sum(cell.metadata.nbgrader.points for cell in cells if notebook.nbgrader_role(cell) == "grade")
    test = next(cell for cell in cells if cell.id == f"{EXERCISE}-test")
    test.metadata.nbgrader.points += 1.5
    worth = test.metadata.nbgrader.points
    assert rules.wrong_points(LESSON, cells) == [
        f"{notebook.place('08-title')}: the exercises have {total + 1.5:g} points in all: "
        f"write `· {total + 1.5:g} points` into the title",
        f"{notebook.place('08-ex1')}: {EXERCISE}-test has {worth:g} points: "
        f"write `({worth:g} points)` into the heading",
    ]


def change_source(old, new):
    """A change of a cell's text, which must be there."""

    def change(cell):
        assert old in cell.source
        cell.source = cell.source.replace(old, new)

    return change


TEST = f"{EXERCISE}-test"
EXAMPLE = "08-ex1-try"


@pytest.mark.parametrize(
    ("rule", "cell", "change", "says"),
    [
        ("cells", "08-title", lambda cell: cell.update(id="Title"), "a cell's id is 08- and words in small letters"),
        ("cells", EXAMPLE, lambda cell: cell.update(id="08-title"), "two cells have the id 08-title"),
        ("cells", TEST, lambda cell: cell.update(id="08-ex1-bounds"), f"after the answer {EXERCISE} comes {TEST}"),
        ("cells", TEST, lambda cell: cell.metadata.nbgrader.update(points=0), f"{TEST} has no points"),
        ("cells", EXERCISE, lambda cell: cell.metadata.nbgrader.update(grade_id="a"), "grade_id should be '08-ex1-"),
        ("cells", EXERCISE, lambda cell: cell.metadata.nbgrader.update(locked=True), "locked should be False"),
        ("regions", EXERCISE, change_source("### END SOLUTION", ""), "needs one `### BEGIN SOLUTION` and one"),
        ("regions", TEST, change_source("### BEGIN HIDDEN TESTS", ""), "needs one `### BEGIN HIDDEN TESTS` and one"),
        ("regions", EXAMPLE, lambda cell: cell.update(source="### BEGIN SOLUTION"), "needs no `### BEGIN`"),
        ("regions", EXERCISE, change_source('"""', "# "), "needs a docstring that says what is asked"),
        ("regions", EXERCISE, lambda cell: cell.update(source=cell.source + "\nx = 1"), "functions and classes alone"),
        ("rebound", TEST, change_source('"""', 'torch = 1\n"""'), f"{TEST} defines torch anew, which "),
        ("rebound", EXAMPLE, lambda cell: cell.update(source=f"torch = 1\n{cell.source}"), f"{EXAMPLE} defines torch "),
        ("long", EXAMPLE, lambda cell: cell.update(source="1\n" * 26), "students see 26 lines of 08-ex1-try: at "),
        ("long", EXERCISE, change_source("### END", "1\n    " * 40 + "### END"), f"{EXERCISE} has"),
        ("markup", EXAMPLE, lambda cell: cell.update(source=":::{note}\n:::"), "JupyterLab shows the ::: or ```{…} of"),
        ("markup", EXAMPLE, lambda cell: cell.metadata.update(tags=["parameters"]), "one cell of a lesson has the tag"),
        ("statement", "08-ex1", lambda cell: cell.update(source=cell.source + " word" * 180), " words, its hints left"),
    ],
)  # fmt: skip
def test_what_no_lesson_may_have_is_named_with_its_place(rule, cell, change, says):
    find = {
        "cells": functools.partial(rules.strange_cells, LESSON),
        "regions": rules.strange_regions,
        "rebound": rules.rebound_names,
        "long": rules.long_cells,
        "markup": rules.strange_markup,
        "statement": rules.long_statements,
    }[rule]
    cells = copy.deepcopy(notebook.read(LESSON).cells)
    assert not find(cells)
    change(next(one for one in cells if one.id == cell))
    found = find(cells)
    assert any(says in line for line in found), found
    assert all("\n" not in line for line in found)


def test_hints_and_formulas_are_no_words_of_a_statement():
    text = "## The idea\n\nWords.\n\n### Exercise 1 · `f` (1 point)\n\nReturn $a + b$.\n\n<details>A hint</details>"
    assert rules.words_of(text) == len(["1", "·", "`f`", "(1", "point)", "Return", "$x$."])


def test_a_chapter_that_counts_other_exercises_or_points_is_named():
    cells = notebook.read(LESSON).cells
    chapter = "# A\n\n20 points in two exercises\n\n## Exercises\n\nWrite a step, 20 points\nin two exercises: do.\n"
    points = sum(cell.metadata.nbgrader.points for cell in cells if notebook.nbgrader_role(cell) == "grade")
    assert rules.wrong_totals(LESSON, cells, chapter) == [
        f"book/{LESSON}.md:7: the notebook has other totals: write 'Write a step, {points:g} points'",
        f"book/{LESSON}.md:8: the notebook has other totals: write 'in seven exercises: do.'",
    ]
    assert not rules.wrong_totals(LESSON, cells, rules.with_totals(chapter, cells))
    assert "seven exercises, " in rules.with_totals("\n## Exercises\nsix exercises, 3 points.", cells)


def test_an_exercise_that_is_still_the_example_is_named(tmp_path):
    (tmp_path / "wrong.md").write_text("## 08-ex7-last\n\n### a_b\nReplace this hint: no.\n\n## 08-ex8-no\n")
    (tmp_path / "checks.py").write_text('"""Replace this."""\n\n@check("08-ex7-last", points=1)\n')
    what = "08-ex7 is the example of new-exercise here: write your own in its place"
    assert rules.not_replaced(tmp_path) == [f"{tmp_path}/checks.py:1: {what}", f"{tmp_path}/wrong.md:4: {what}"]


def test_stray_blanks_and_a_missing_line_break_are_named(tmp_path):
    path = tmp_path / "wrong.md"
    path.write_text("# A\n\nB \nC")
    assert rules.stray_spaces(path) == [
        f"{path}:3: the line ends with a blank: remove it",
        f"{path}: the last line has no line break: add one",
    ]


def test_an_exercise_without_an_example_is_named():
    cells = [cell for cell in notebook.read(LESSON).cells if not re.match("08-ex1-(?!shard-bounds)", cell.id)]
    assert rules.without_example(cells) == [f"{EXERCISE} has no example: add a cell 08-ex1-try that runs the answer"]


def test_an_answer_with_a_check_that_is_none_is_named():
    answer = Answer("rounds_up", LESSON, EXERCISE, "", "", (), ("no_such_check",))
    assert rules.strange_answers([Check(EXERCISE, 1, False, holds)], [answer]) == [
        f"rounds_up is recorded to fail no_such_check, which is no check of {EXERCISE}: its checks are holds"
    ]


def test_an_answer_without_a_record_and_a_record_without_an_answer_are_named():
    answers = [Answer(name, LESSON, EXERCISE, "", "") for name in ("rounds_up", "adds_one")]
    assert rules.unlike_the_record(answers, [(EXERCISE, "rounds_down")]) == [
        "rounds_down is recorded, but no wrong answer: make audit LESSONS=08-ex1 RECORD=1",
        "adds_one, rounds_up are not recorded: make audit LESSONS=08-ex1 RECORD=1",
    ]


def test_an_answer_to_no_exercise_is_named():
    cells = [cell for cell in notebook.read(LESSON).cells if cell.id != EXERCISE]
    problems = rules.missing_parts(LESSON, cells, checks(), wrong.load_wrong(LESSON), [])
    assert (
        f"bounds_round_down answers {EXERCISE}, which is no exercise of 08_zero1: correct its cell, "
        "or add it to the notebook"
    ) in problems


def test_a_lesson_without_a_file_is_named(tmp_path):
    files = [
        f"solutions/98_tiny/{name}" for name in ("98_tiny.ipynb", "checks.py", "wrong.md", "verdicts.txt", "right.py")
    ]
    expected = [f"98_tiny has no {name}: add it" for name in (*files, "book/98_tiny.md")]
    assert rules.missing_files("98_tiny", tmp_path) == expected
    package = tmp_path / "solutions" / "98_tiny" / "checks"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert not any("checks" in problem for problem in rules.missing_files("98_tiny", tmp_path))


def test_a_lesson_that_is_not_listed_is_named():
    texts = {name: (notebook.ROOT / name).read_text().replace(LESSON, "08_zero") for name in LISTS}
    assert rules.missing_in_lists(LESSON, texts) == [
        "_toc.yml does not list 08_zero1: add its chapter to a part",
        "README.md does not list 08_zero1: add its chapter to the table",
        "book/index.md does not list 08_zero1: add its chapter to the table",
    ]
