"""`autograder where`: the places of an exercise are there, with the right lines, and none is left out."""

from __future__ import annotations

import ast

import pytest

from autograder import checks
from autograder.__main__ import main
from autograder.answers import right, wrong
from autograder.author import where
from autograder.lesson import notebook

STEP = "08-ex3-step"


def said(capsys, name):
    """What the command prints for an exercise: [(path, line, what)]."""
    assert main(["where", name]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line]
    return [(*row.split(maxsplit=1)[0].rsplit(":", 1), row.split(maxsplit=1)[1]) for row in rows]


def test_each_line_holds_what_is_said_to_be_there(capsys):
    rows = said(capsys, STEP)
    assert len(rows) > 20
    for path, line, what in rows:
        text = (notebook.ROOT / path).read_text().splitlines()[int(line) - 1]
        name = what.split(" (")[0].split()[-1]
        if what.startswith("piece"):
            assert text.strip().startswith('"08_zero1":')
        else:
            assert name in text, (path, line, what)


def test_every_part_of_the_exercise_is_named(capsys):
    whats = [what for _, _, what in said(capsys, STEP)]
    cells = [cell.id for cell in notebook.read("08_zero1").cells if cell.id.startswith("08-ex3")]
    assert whats[: len(cells)] == [
        "statement 08-ex3",
        "answer 08-ex3-step",
        "example 08-ex3-try",
        "test 08-ex3-step-test",
        "text 08-ex3-after",
        "example 08-ex3-predict",
    ]
    assert f"released {STEP}" in whats and "check state_is_a_shard" in whats
    for load, word in ((wrong.load_wrong, "wrong"), (right.load_right, "right")):
        names = [f"{word} answer {answer.name}" for answer in load("08_zero1") if answer.cell == STEP]
        assert names and sorted(names) == sorted(what for what in whats if what.startswith(word))
    assert "example class: gradients_are_summed" in [what for _, _, what in said(capsys, "08-ex2-gradient")]
    assert "piece of 17_capstone: ShardedOptimizer" in whats, "the capstone takes a class that inherits from it"
    assert any(what.startswith(f"names {STEP}") for what in whats)


def test_the_checks_are_those_that_are_registered(capsys):
    exercise = where.find("02-ex1")
    whats = {what for _, _, what in said(capsys, "02-ex1") if what.startswith("check ")}
    own = {one.name for one in checks.of_exercise(exercise.cell)}
    assert whats == {f"check {name}" for name in own} != set()


def test_an_exercise_that_the_example_class_names_by_a_constant_is_found(capsys):
    rows = said(capsys, "03-ex4")
    lines = (notebook.ROOT / "examples" / "class" / "make.py").read_text().splitlines()
    places = [lines[int(line) - 1] for path, line, _ in rows if path == "examples/class/make.py"]
    assert any("never_ends(EMA)" in place for place in places)


def test_checks_are_found_in_packages_and_by_constants(tmp_path, monkeypatch):
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    package = tmp_path / "solutions" / "98_tiny" / "checks"
    package.mkdir(parents=True)
    text = 'TWICE, OTHER = "98-ex1-twice", "98-ex2-other"\n\n@check.check(TWICE, points=2)\ndef doubles(twice): ...\n'
    (package / "twice.py").write_text(text + "\n@check(OTHER, veto=True)\ndef others(other): ...\n")
    found = where._checks(where.Exercise("98_tiny", "98-ex1-twice", ("twice",)))
    assert [(str(place), place.name) for place in found] == [("solutions/98_tiny/checks/twice.py:4", "doubles")]


def test_exercise_1_is_not_exercise_10():
    exercise = where.Exercise("98_tiny", "98-ex1-twice", ())
    assert exercise.owns("98-ex1") and exercise.owns("98-ex1-try") and not exercise.owns("98-ex10-try")


def test_the_whole_name_and_the_name_of_the_test_will_do():
    assert where.find("08-ex3") == where.find(STEP) == where.find(f"{STEP}-test")
    assert "ShardedOptimizer" in where.find(STEP).functions


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("8-ex3", "'8-ex3' does not name an exercise: write it as 08-ex3, or in full as 08-ex3-step"),
        ("../etc", "'../etc' does not name an exercise: write it as 08-ex3, or in full as 08-ex3-step"),
        ("98-ex1", "no lesson 98; there are: 01_collectives, "),
        ("08-ex9", "08_zero1 has no exercise 08-ex9; it has: 08-ex1-shard-bounds, 08-ex2-gradient, 08-ex3-step, "),
        ("08-ex3-stop", "08_zero1 has no exercise 08-ex3-stop; it has: 08-ex1-shard-bounds, "),
    ],
)
def test_a_name_of_nothing_is_one_line_that_says_what_there_is(capsys, name, says):
    assert main(["where", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"autograder: {says}") and error.count("\n") == 1


def test_constants_are_read_one_by_one_and_several_at_once():
    tree = ast.parse('A = "a"\nB, C = "b", "c"\nD = 1 + 1\nE, F = pair()\n')
    assert where._constants(tree) == {"A": "a", "B": "b", "C": "c"}
