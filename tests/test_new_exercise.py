"""`autograder new-exercise` and `try`: an exercise that is whole, and what is wrong with one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder.__main__ import main
from autograder.authoring import new_exercise, rules, where
from autograder.checking import check
from autograder.lessons import notebook, release

LESSON, FUNCTION = "02_costs", "bus_bandwidth"
CELL = "02-ex7-bus-bandwidth"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with two lessons, one of which is full."""
    for lesson in (LESSON, "01_collectives"):
        shutil.copytree(notebook.SOLUTIONS / lesson, tmp_path / "solutions" / lesson)
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / f"{LESSON}.md").write_text("# Costs\n\n## Exercises\n\nA text, 16 points in six exercises.\n")
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    monkeypatch.setattr(notebook, "NOTEBOOKS", tmp_path / "notebooks")
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    """The files below a folder, with their bytes."""
    found = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


# What cannot be


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["99", FUNCTION], "no lesson"),
        (["02", "two words"], "'two words' is no name for a function: write small letters"),
        (["02", "class"], "'class' is no name for a function"),
        (["02", "BusBandwidth"], "'BusBandwidth' is no name for a function"),
        (["02", "b" * 41], "is no name for a function: .* at most 40"),
        (["02", "ring_time"], r"the name ring_time is taken: solutions/02_costs/02_costs.ipynb:\d+ defines it"),
        (["02", "ping_pong"], r"the name ping_pong is taken: solutions/02_costs/02_costs.ipynb:\d+ defines it"),
        (["02", FUNCTION, "--points", "0.3"], "an exercise has points in quarters, such as 0.5 or 2, not 0.3"),
        (["02", FUNCTION, "--points", "0"], "an exercise has points in quarters, such as 0.5 or 2, not 0"),
        (["02", FUNCTION, "--points", "inf"], "an exercise has points in quarters, such as 0.5 or 2, not inf"),
        (
            ["01", FUNCTION],
            "01_collectives is full: it has (60 cells|7 exercises), and a lesson has at most (60|7); in lessons 02 ",
        ),
        (["02", "told"], "solutions/02_costs/checks/told.py exists: move it away first, or choose another name"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_nothing_is_written(root, capsys, arguments, says):
    (root / "solutions" / LESSON / "checks" / "told.py").touch()
    before = contents(root)
    assert main(["new-exercise", *arguments]) == 2
    error = capsys.readouterr().err
    assert re.match(rf"autograder: .*(?:{says})", error) and error.count("\n") == 1, error
    assert contents(root) == before


def test_a_name_that_a_known_answer_begins_with_is_refused(root, capsys):
    path = root / "solutions" / LESSON / "right.py"
    path.write_text(path.read_text().replace("def roofline_by_intensity", f"def {FUNCTION}_by_intensity"))
    assert main(["new-exercise", "02", FUNCTION]) == 2
    assert f"a known answer of {LESSON} is named {FUNCTION}_… already" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("refused"), KeyboardInterrupt()])
def test_a_release_that_fails_leaves_everything_as_it_was(root, monkeypatch, error):
    before = contents(root)

    def fail(lessons):
        assert (root / "solutions" / LESSON / "checks" / f"{FUNCTION}.py").is_file()
        (root / "notebooks" / LESSON).mkdir(parents=True)
        (root / "notebooks" / LESSON / f"{LESSON}.ipynb").write_text("half")
        raise error

    monkeypatch.setattr(release, "release", fail)
    with pytest.raises(type(error)):
        new_exercise.command(type("Arguments", (), {"lesson": "02", "function": FUNCTION, "points": 2.0}))
    assert contents(root) == before


# What is planned


def test_the_exercise_has_all_its_parts_and_the_totals_are_right(root):
    texts = new_exercise.plan(root, LESSON, FUNCTION, 0.5)
    assert list(texts) == [
        f"solutions/{LESSON}/{name}"
        for name in (f"{LESSON}.ipynb", f"checks/{FUNCTION}.py", "right.py", "wrong.md", "verdicts.txt")
    ] + [f"book/{LESSON}.md"]
    assert not [name for name, text in texts.items() if re.search(r"\bNN\b|ex0|new.function", text)]
    nb = nbformat.reads(texts[f"solutions/{LESSON}/{LESSON}.ipynb"], as_version=4)
    ids = [cell.id for cell in nb.cells]
    at = ids.index("02-ex7")
    assert ids[at - 1 : at + 5] == [
        "02-ex6-predict", "02-ex7", CELL, "02-ex7-try", f"{CELL}-test", "02-takeaways",
    ]  # fmt: skip
    assert "\nAbout 2 hours · 16.5 points" in nb.cells[0].source
    assert nb.cells[at].source.startswith("### Exercise 7 · `bus_bandwidth(nbytes, seconds)` (0.5 points)\n\nReplace")
    assert not [line for rule in (rules.strange_cells, rules.wrong_points) for line in rule(LESSON, nb.cells)]
    assert not rules.long_cells(nb.cells) and not rules.without_example(nb.cells)
    assert texts[f"book/{LESSON}.md"] == "# Costs\n\n## Exercises\n\nA text, 16.5 points in seven exercises.\n"


def test_a_module_of_checks_gets_the_imports_that_it_lacks_and_no_other(root, monkeypatch):
    monkeypatch.setattr(notebook, "ROOT", Path(new_exercise.__file__).parents[2])  # where ruff finds its settings
    path = notebook.ROOT / "autograder" / "authoring" / "templates" / "checks.py"
    template = (new_exercise.TEMPLATES / "checks.py").read_text()
    text = new_exercise.appended(path, template)
    head, _, code = text.partition('@check("NN-ex0-new-function"')
    assert code and head.count("import check\n") == 1 and head.count("import numpy as np\n") == 1
    assert "from fractions import Fraction\n" in head
    assert "from autograder.checking.cases import ANYTHING, Call, Case, close, complaint, fact\n" in head
    assert text.startswith(path.read_text().partition("from collections")[0])


# Outputs


def test_what_jupyterlab_leaves_is_named_and_removed(root, capsys):
    path = root / "solutions" / LESSON / f"{LESSON}.ipynb"
    before, nb = path.read_text(), nbformat.read(path, as_version=4)
    assert rules.strange_form(LESSON) == []
    nb.metadata.language_info = {"name": "python", "version": "3.11.7", "file_extension": ".py"}
    cell = next(cell for cell in nb.cells if cell.cell_type == "code")
    cell.metadata.trusted = True
    where = f"solutions/{LESSON}/{LESSON}.ipynb"
    for outputs, what in (([], "it is not in the form in which solutions are stored"), ([1], f"{cell.id} has outputs")):
        cell.outputs = [nbformat.v4.new_output("stream", text="4\n") for _ in outputs]
        nbformat.write(nb, path)
        assert rules.strange_form(LESSON) == [f"{where}: {what}: close it in the editor and run make notebooks"]
    assert main(["hidden-tests", LESSON]) == 0
    assert capsys.readouterr().out == f"{where}: outputs, and what an editor wrote besides the cells, removed\n"
    assert path.read_text() == before and rules.strange_form(LESSON) == []


# In a copy of the repository


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A copy of the repository with a new exercise, and what the command said."""
    root = tmp_path_factory.mktemp("course") / "repository"
    left_out = shutil.ignore_patterns(".*", "_build", "__pycache__", "*.egg-info", "submitted", "*.mine*.ipynb")
    shutil.copytree(notebook.ROOT, root, ignore=left_out)
    status, said = run(root, "new-exercise", "02", FUNCTION, "--points", "2")
    assert status == 0, said
    return root, said


def run(root: Path, *arguments: str) -> tuple[int, str]:
    """The exit status of `autograder …` with the packages of the copy, and what it prints."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    del environment[check.SEED]  # what is recorded must be seen on two draws of inputs
    command = [sys.executable, "-m", "autograder", *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_command_names_each_place_that_is_to_be_replaced(made):
    root, said = made
    assert "02-ex7 passes its tests. Replace what it holds:" in said
    for what in ("statement 02-ex7", f"check {FUNCTION}_is_bytes_over_seconds", f"wrong answer {FUNCTION}_multiplies"):
        assert re.search(rf"^\S+:\d+ +{what}$", said, re.MULTILINE), said
    status, tried = run(root, "try", "02-ex7")
    named = set(re.findall(r"^  (\S+):\d+: 02-ex7 is the example of new-exercise here", tried, re.MULTILINE))
    files = ("02_costs.ipynb", f"checks/{FUNCTION}.py", "right.py", "wrong.md")
    assert status == 1 and named == {f"solutions/{LESSON}/{name}" for name in files}
    assert run(root, "try", "02-ex5")[0] == 0, "lines of another exercise are not shown"


def replace(root: Path, name: str, old: str, new: str) -> None:
    path = root / "solutions" / LESSON / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.slow
@pytest.mark.jail
def test_what_is_wrong_with_an_exercise_is_said_and_a_good_one_passes(made):
    root = made[0]
    for name in (f"{LESSON}.ipynb", f"checks/{FUNCTION}.py", "right.py", "wrong.md"):
        replace(root, name, "Replace this", "Here is")
    status, said = run(root, "try", "02-ex7")
    assert status == 0 and re.search(r"\n02-ex7: no problems; [\d.]+ s of processor time\n$", said), said
    assert f"notebooks/{LESSON}/{LESSON}.ipynb written" in said, "the released notebook is brought up to date"
    assert "\naudited: good\njailed: good\n" in said
    assert f"\n  {FUNCTION}_is_bytes_over_seconds, 2 points: 1 wrong answers fail it, 1 alone\n" in said
    planted = [
        ("right.py", "return 1 / (seconds / nbytes)", "import os; return 1 / (seconds * nbytes)"),
        ("wrong.md", "+    return nbytes * seconds", "+    return nbytes / (seconds)"),
        (f"{LESSON}.ipynb", "· 18 points", "· 16 points"),
        (f"{LESSON}.ipynb", "Here is statement. ", f"Here is statement. {'word ' * 200}"),
        (f"checks/{FUNCTION}.py", "gives=close(expected, ", "gives=close(expected,  "),
        ("wrong.md", "Here is hint: ", "Here is hint:  \n"),
    ]
    for name, old, new in planted:
        replace(root, name, old, new)
    status, said = run(root, "try", "02-ex7")
    assert status == 1 and re.search(rf"right answer {FUNCTION}_by\w+: 02-ex7\S+ lost its marks: ", said), said
    assert re.search(r"^  solutions/02_costs/right\.py:\d+:\d+: E702", said, re.MULTILINE), said
    assert said.count(f"wrong answer {FUNCTION}_multiplies") == 2 and said.count("keeps its marks") == 1, said
    assert "the exercises have 18 points in all: write `· 18 points` into the title" in said, said
    assert re.search(r"ipynb:\d+: the statement of 02-ex7 has 2\d\d words, its hints left out: at most ", said), said
    checks = f"solutions/{LESSON}/checks/{FUNCTION}.py"
    assert f"\n  {checks}: not in the usual form: ruff format {checks}\n" in said, said
    assert re.search(r"\n  solutions/02_costs/wrong\.md:\d+: the line ends with a blank: remove it\n", said), said
    for name, old, new in planted:
        replace(root, name, new, old)
    replace(root, "verdicts.txt", f"  {FUNCTION}_multiplies: core\n", "")
    status, said = run(root, "try", "02-ex7", "--record")
    assert status == 0 and f"+  {FUNCTION}_multiplies: core" in said, said


@pytest.mark.slow
@pytest.mark.jail
def test_the_worked_exercise_of_the_guide_is_good(made):
    """Its parts in the place of those that `new-exercise` has made; nothing else is written."""
    root, solution = made[0], made[0] / "solutions" / LESSON
    guide = (notebook.ROOT / "CONTRIBUTING.md").read_text()
    worked = guide.partition("## An exercise, from nothing to green")[2].partition("\n## ")[0]
    answer, visible, checks, right = re.findall(r"^```python\n(.*?)^```$", worked, re.MULTILINE | re.DOTALL)
    mistakes = re.search(r"^````text\n(.*?)^````$", worked, re.MULTILINE | re.DOTALL)[1]
    nb = nbformat.read(solution / f"{LESSON}.ipynb", as_version=4)
    cells = {cell.id: cell for cell in nb.cells}
    cells["02-ex7"].source = "### Exercise 7 · `bus_bandwidth(nbytes, n, seconds)` (2 points)\n\nReturn what it says."
    cells[CELL].source = answer.rstrip()
    cells["02-ex7-try"].source = "print(bus_bandwidth(3000, 4, 1.5))"
    hidden = cells[f"{CELL}-test"].source.partition("### BEGIN")[2].partition("### END HIDDEN TESTS")[0]
    text, _, code = visible.rstrip().partition("\n")
    cells[f"{CELL}-test"].source = f"{text}\n### BEGIN{hidden}### END HIDDEN TESTS\n{code}"
    nbformat.write(nb, solution / f"{LESSON}.ipynb")
    module = solution / "checks" / f"{FUNCTION}.py"
    head = module.read_text().partition("@check(")[0].replace("Replace this", "A test")
    module.write_text(head.replace("import Call, close", "import Call, close, refused") + checks)
    for name, start, part in (("wrong.md", f"## {CELL}\n\n", mistakes), ("right.py", f'@answer_to("{CELL}")', right)):
        before = (solution / name).read_text().partition(start)[0]
        (solution / name).write_text(before + (start if name == "wrong.md" else "") + part)
    said = run(root, "try", "02-ex7")[1]
    record = (
        "\n  forgets_the_second_half, takes_any_number_of_ranks are not recorded: make audit LESSONS=02-ex7 RECORD=1\n"
    )
    assert record in worked
    assert record in said and said.count("recorded") == said.count("not recorded") + 1 == 4, said
    status, said = run(root, "audit", "02-ex7", "--record")
    recorded = re.search(r"^solutions/\S+verdicts\.txt:\n(  .*\n)+", worked, re.MULTILINE)[0]
    assert status == 0 and recorded.splitlines()[-2:] == [line for line in said.splitlines() if line.startswith("  +")]
    status, said = run(root, "try", "02-ex7")
    assert status == 0 and "style: good\naudited: good\njailed: good\n" in said, said


def test_an_exercise_that_does_not_exist_is_named_in_one_line(capsys):
    assert main(["try", "02-ex9"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("autograder: 02_costs has no exercise 02-ex9; it has: ") and error.count("\n") == 1
    assert where.find("02-ex6").cell == "02-ex6-roofline"
