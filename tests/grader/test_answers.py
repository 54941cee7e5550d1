"""Known answers are read as they are written: wrong ones as diffs of the solution, with what is recorded of them."""

from __future__ import annotations

import os

import pytest

from autograder.__main__ import main
from autograder.answers import answer, right, verdicts, wrong
from autograder.answers.verdicts import Losses
from autograder.lesson import notebook
from tests.helpers import tiny_lesson

LESSON, CELL = "98_tiny", "98-ex1-twice"
START = f"# Wrong answers\n\n## {CELL}\n\n"


def entry(name="adds_three", hint="You added.", block="```diff\n-    two\n+    three\n```"):
    return f"### {name}\n{hint}\n{block}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the answers to a lesson of one exercise."""
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    tiny_lesson.lesson(tmp_path / "solutions", LESSON)
    return answer.folder(LESSON)


# Reading


def test_an_entry_has_a_name_a_hint_and_a_block():
    text = START + entry(hint="You added\n2, which\nis right for 2.") + "\n" + entry("other from base")
    first, other = wrong.parse(text)
    assert first[:5] == (CELL, "adds_three", "", 5, "You added 2, which is right for 2.")
    assert first[5:] == ("diff", 10, ["-    two", "+    three"])
    assert (other.name, other.base, other.line) == ("other", "base", 14)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (entry(), 1, "adds_three is in no section: write ## and the id of the answer cell above"),
        (START + entry() + entry(), 11, "there is another entry of the name adds_three"),
        (START + entry(hint=""), 5, "adds_three has no hint: say what the student did and what follows from it"),
        (START + entry(block=""), 5, "adds_three has no block: write its diff after the hint"),
        (START + entry(block="") + entry("other"), 5, "adds_three has no block: write its diff after the hint"),
        (START + entry(block="") + f"## {CELL}", 5, "adds_three has no block: write its diff after the hint"),
        (START + entry(block="```diff\n-    two"), 7, "the block of adds_three does not end: write ``` below it"),
        (
            START + entry(block="```diff\n-    two") + entry("other"),
            7,
            "the block of adds_three does not end: write ``` below it",
        ),
        (START + entry(block="```py\nx\n```"), 7, "a block begins with ```diff or ```python, not with ```py"),
        (START + "```diff\n+x\n```", 5, "a block of no entry: write ### and a name, and a hint, above it"),
        (START + entry() + "More.", 11, "a text of no entry: a hint stands between a name and its block"),
        (START + "### adds three", 5, "'### adds three' is no heading: write ## CELL, ### name or ### name from NAME"),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_named(text, line, says):
    with pytest.raises(wrong.BadLineError) as caught:
        wrong.parse(text)
    assert (caught.value.line, str(caught.value)) == (line, says)


# Diffs

SOURCE = "def f(x):\n    y = x\n\n    y = x\n    return y"


@pytest.mark.parametrize(
    ("diff", "result"),
    [
        ("-def f(x):\n+def f(x, z):", "def f(x, z):\n    y = x\n\n    y = x\n    return y"),
        ("+import os\n def f(x):", "import os\ndef f(x):\n    y = x\n\n    y = x\n    return y"),
        ("-    return y", "def f(x):\n    y = x\n\n    y = x"),
        ("     return y\n+    print(y)", "def f(x):\n    y = x\n\n    y = x\n    return y\n    print(y)"),
        ("     y = x\n \n-    y = x\n+    y = 2", "def f(x):\n    y = x\n\n    y = 2\n    return y"),
        ("     y = x\n\n-    y = x\n+    y = 2", "def f(x):\n    y = x\n\n    y = 2\n    return y"),
        ("-\n+    z = 1", "def f(x):\n    y = x\n    z = 1\n    y = x\n    return y"),
        (" def f(x):\n-    y = x\n@@\n-    y = x\n+\n     return y\n@@", "def f(x):\n\n\n    return y"),
        ("-    return y\n@@\n-def f(x):\n+def g(x):", "def g(x):\n    y = x\n\n    y = x"),
        (" def f(x):\n+    if x:\n+        return 1", SOURCE.replace("(x):", "(x):\n    if x:\n        return 1")),
    ],
)
def test_a_diff_changes_whole_lines(diff, result):
    assert wrong.changed(SOURCE, diff.split("\n")) == result


@pytest.mark.parametrize(
    ("diff", "line", "says"),
    [
        ("-    y = x", 7, "the cell has 2 such places, expected one: 'y = x' …"),
        ("-y = x", 7, "the cell has 0 such places, expected one: 'y = x' …"),
        ("-def f(x):\n@@\n-    z = x\n+    z = 1", 9, "the cell has 0 such places, expected one: 'z = x' …"),
        ("+    z = 1", 7, "nothing says where these lines go: add a line that stays, a blank in front"),
        ("-def f(x):\nreturn", 8, "'return' begins with neither a blank, nor -, nor +"),
        (
            " def f(x):\n-    return y",
            7,
            "its lines do not stand together in the cell: write a line @@ between two places",
        ),
        (" def f(x):\n-    y = x\n@@\n     y = x\n-", 7, "this place overlaps with another one"),
    ],
)
def test_a_diff_that_does_not_fit_says_where(diff, line, says):
    with pytest.raises(wrong.BadLineError) as caught:
        wrong.changed(SOURCE, diff.split("\n"), 7)
    assert (caught.value.line, str(caught.value)) == (line, says)


# A lesson's files

RIGHT = f'''
from autograder.answers.right import answer_to


@answer_to("{CELL}")
def adds_itself():
    """Adds x to itself."""

    def twice(x):
        return x + x


@answer_to("{CELL}")
def in_steps():
    """Adds in a second step."""

    def twice(x):
        y = x
        y += x
        return y
'''
OLD = "    doubled_value_of_the_input = 2 * x"
WRONG = START + entry(block=f"```diff\n-{OLD}\n+{OLD.replace('2', '3')}\n```")
WRONG += entry("forgets from in_steps", "You returned x.", "```diff\n-    y += x\n```")
WRONG += entry("writes_anew", "You wrote 4.", "```python\ndef twice(x):\n    return 4\n```")


def test_the_answers_of_a_lesson(folder):
    (folder / "wrong.md").write_text(WRONG)
    (folder / "right.py").write_text(RIGHT)
    (folder / "verdicts.txt").write_text(f"{CELL}\n  adds_three: core\n  forgets: a_check > 98-ex2-other\n")
    adds, forgets, anew = wrong.load_wrong(LESSON)
    assert "= 3 * x\n    return doubled_value" in adds.source and adds.breaks == (f"{CELL}-test",) and not adds.fails
    assert forgets.source == "def twice(x):\n    y = x\n    return y\n" and forgets.hint == "You returned x."
    assert forgets.breaks == (f"{CELL}-test", "98-ex2-other-test") and forgets.fails == ("a_check",)
    assert anew.source == "def twice(x):\n    return 4\n" and (anew.breaks, anew.fails) == verdicts.NOT_RECORDED
    assert [known.name for known in right.load_right(LESSON)] == ["adds_itself", "in_steps"]
    assert right.load_right(LESSON)[0].source == "def twice(x):\n    return x + x\n"
    assert wrong.of_exercise(CELL) == [adds, forgets, anew] and wrong.of_exercise("98-ex2-other") == []


def test_a_lesson_without_files_has_no_answers(folder):
    assert wrong.load_wrong(LESSON) == wrong.load_wrong("nothing") == right.load_right(LESSON) == []


def test_answers_are_read_again_when_the_solution_or_a_file_has_changed(folder):
    (folder / "wrong.md").write_text(WRONG)
    (folder / "right.py").write_text(RIGHT)
    assert len(wrong.load_wrong(LESSON)) == 3
    path = notebook.solution_path(LESSON)
    path.write_text(path.read_text().replace("2 * x", "x * 2"))
    os.utime(path, ns=(1, 1))
    with pytest.raises(ValueError, match="has 0 such places"):
        wrong.load_wrong(LESSON)
    (folder / "wrong.md").write_text(WRONG.replace("2 * x", "x * 2"))
    os.utime(folder / "wrong.md", ns=(1, 1))
    assert "3 * x" in wrong.load_wrong(LESSON)[0].source


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "# Wrong\n## 98-ex9\n" + entry(),
            "3: adds_three: 98_tiny has no answer cell 98-ex9; it has 98-ex1-twice "
            "(a course leaves an exercise out in course.toml)",
        ),
        (START + entry(), "8: adds_three: the cell has 0 such places, expected one: 'two' …"),
        (START + entry("b from no"), f"5: b: right.py has no answer no to {CELL}"),
        (
            WRONG.replace("3 * x", "3 * (x"),
            "5: adds_three: with it the cell is no Python: '(' was never closed: 'doubled_value_of_the_input = 3 * (x'",
        ),
        (START + entry(hint=""), "5: adds_three has no hint: say what the student did and what follows from it"),
    ],
)
def test_an_error_is_one_line_with_file_and_line(folder, text, says):
    (folder / "wrong.md").write_text(text)
    with pytest.raises(ValueError) as caught:
        wrong.load_wrong(LESSON)
    assert str(caught.value) == f"solutions/98_tiny/wrong.md:{says}"


# The record


def test_a_record_is_read_as_it_is_written(folder):
    known = {
        (CELL, "adds_three"): Losses((f"{CELL}-test",), ()),
        (CELL, "forgets"): Losses((f"{CELL}-test", "98-ex2-b-test", "98-ex3-c-test"), ("one_check", "another")),
        ("98-ex2-b", "other"): Losses(("98-ex2-b-test",), ("a_check",)),
    }
    (folder / "verdicts.txt").write_text(verdicts.text(known))
    assert verdicts.read(LESSON) == known
    assert verdicts.text(known).splitlines() == [
        CELL,
        "  adds_three: core",
        "  forgets: one_check another > 98-ex2-b 98-ex3-c",
        "98-ex2-b",
        "  other: a_check",
    ]


@pytest.mark.parametrize("line", ["  no colon", "<<<<<<< HEAD", "  adds: core >"])
def test_a_line_that_is_no_record_is_named(folder, line):
    (folder / "verdicts.txt").write_text(f"{CELL}\n{line}\n")
    with pytest.raises(ValueError) as caught:
        verdicts.read(LESSON)
    todo = "remove the line; then make audit LESSONS=98-ex1 RECORD=1"
    assert str(caught.value) == f"solutions/98_tiny/verdicts.txt:2: {line!r} is no verdict: {todo}"


def test_how_to_record_is_said_in_one_form():
    assert [verdicts.to_record(name) for name in ("08-ex2-gradient", "08_zero1")] == [
        "make audit LESSONS=08-ex2 RECORD=1",
        "make audit LESSONS=08 RECORD=1",
    ]


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_what_is_recorded_stands_in_the_order_of_the_answers(lesson):
    known = {(known.cell, known.name): Losses(known.breaks, known.fails) for known in wrong.load_wrong(lesson)}
    assert (answer.folder(lesson) / "verdicts.txt").read_text() == verdicts.text(known)


# What cannot be read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(:\n", "1: no Python: invalid syntax: 'def f(:': correct it"),
        ("\nx = no_such\n", "2: NameError: name 'no_such' is not defined: correct it"),
        (
            f"from autograder.answers.right import answer_to\n@answer_to({CELL!r})\ndef a():\n    pass\n",
            "2: the right answer a has no docstring that says how it differs",
        ),
    ],
)
def test_a_file_of_right_answers_that_is_wrong_is_named_with_its_line(folder, capsys, text, says):
    (folder / "right.py").write_text(text)
    for command in (["audit", "98"], ["try", CELL]):
        assert main(command) == 2
        assert capsys.readouterr().err == f"autograder: solutions/98_tiny/right.py:{says}\n"


@pytest.mark.parametrize("command", ["audit", "try", "where", "hidden-tests"])
def test_a_cell_that_is_no_python_is_named_with_its_line(folder, capsys, command):
    (folder / "wrong.md").write_text(START + entry())
    tiny_lesson.lesson(folder.parent, LESSON, answer="doubled_value_of_the_input = 2 *")
    assert main([command, LESSON if command == "hidden-tests" else CELL]) == 2
    error = capsys.readouterr().err
    assert error.startswith("autograder: solutions/98_tiny/98_tiny.ipynb:") and error.count("\n") == 1
    assert ": line 4 of 98-ex1-twice is no Python: invalid syntax: 'doubled_value_of_the_input = 2 *': correct" in error
