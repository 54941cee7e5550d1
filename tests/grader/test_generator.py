"""`autograder new-lesson`, `new-exercise` and `try`: what is made is whole, and nothing is where there can be none."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder.__main__ import main
from autograder.author import generator, rules, where
from autograder.checks import check
from autograder.grade.nbgrader import release
from autograder.lesson import files, notebook

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))
import collected

NAME = "98_tiny_talk"
#: Tests that a new lesson passes, below the repository.
STYLE = [Path("tests", "lessons", f"test_{name}.py") for name in ("style", "lessons", "skippable")]
STYLE.append(Path("tests", "book", "test_collected.py"))
NEW = [place.format(lesson=NAME) for place in rules.FILES]
LISTS = ["_toc.yml", "README.md", "book/index.md"]
LESSON, FUNCTION = "02_costs", "bus_bandwidth"
CELL = "02-ex7-bus-bandwidth"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with a few lessons, one of which is full, and the pages that list them."""
    for name in ("solutions/17_capstone/17_capstone.ipynb", *LISTS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebook.ROOT / name, tmp_path / name)
    for lesson in (LESSON, "01_collectives"):
        shutil.copytree(notebook.SOLUTIONS / lesson, tmp_path / "solutions" / lesson)
    (tmp_path / "book" / f"{LESSON}.md").write_text("# Costs\n\n## Exercises\n\nA text, 16 points in six exercises.\n")
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    monkeypatch.setattr(notebook, "NOTEBOOKS", tmp_path / "notebooks")
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    """The files below a folder, with their bytes."""
    found = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


# What is refused


def refused_in_one_line(root: Path, capsys: pytest.CaptureFixture, line: str, says: str) -> None:
    """`autograder LINE` says this, and writes nothing."""
    before = contents(root)
    assert main(shlex.split(line)) == 2
    error = capsys.readouterr().err
    assert re.match(f"autograder: (?:{says})", error) and error.count("\n") == 1, error
    assert contents(root) == before


@pytest.mark.parametrize(
    ("line", "says"),
    [
        *[
            (f"new-lesson {name}", f"'{name}' is not a lesson's name")
            for name in ("tiny", "98_Tiny", "98_tiny-talk", "98_../../etc", "100_tiny")
        ],
        ("new-lesson 00_tiny", "lessons have numbers from 01 to 99"),
        ("new-lesson 17_tiny", "the number 17 is taken: 17_capstone"),
        ("new-lesson 98_begun", "solutions/98_begun exists, though there is no lesson 98_begun: move it away first"),
        ("new-lesson 98_told", "book/98_told.md exists, though there is no lesson 98_told: move it away first"),
        ("new-exercise 99 bus_bandwidth", "no lesson"),
        ("new-exercise 02 'two words'", "'two words' is no name for a function: write small letters"),
        *[(f"new-exercise 02 {name}", f"'{name}' is no name for a function") for name in ("class", "BusBandwidth")],
        (f"new-exercise 02 {'b' * 41}", "'b+' is no name for a function: .* at most 40"),
        *[
            (f"new-exercise 02 {name}", rf"the name {name} is taken: solutions/02_costs/02_costs.ipynb:\d+ defines it")
            for name in ("ring_time", "ping_pong")
        ],
        *[
            (f"new-exercise 02 {FUNCTION} --points {points}", f"an exercise has points in quarters, .* not {points}")
            for points in (0.3, 0, "inf")
        ],
        (
            "new-exercise 01 bus_bandwidth",
            "01_collectives is full: it has (60 cells|7 exercises), and a lesson has at most (60|7); in lessons 02 ",
        ),
        (f"new-exercise 02 {FUNCTION} --points 0.75 --ranks", "an exercise on ranks has three checks, and so 1 point"),
        ("new-exercise 02 told", "solutions/02_costs/checks/told.py exists: move it away first, or choose another"),
    ],
)
def test_a_name_that_cannot_be_is_refused(root, capsys, line, says):
    (root / "solutions" / "98_begun").mkdir()
    for there in ("solutions/98_begun/wrong.md", "book/98_told.md", "solutions/02_costs/checks/told.py"):
        (root / there).touch()
    refused_in_one_line(root, capsys, line, says)


@pytest.mark.parametrize(
    ("file", "old", "new", "line", "says"),
    [
        ("README.md", "(?s).*", "no\n", f"new-lesson {NAME}", "README.md has no table"),
        ("_toc.yml", "(?s).*", "no\n", f"new-lesson {NAME}", "_toc.yml lists no"),
        (
            f"solutions/{LESSON}/right.py",
            "def roofline_by_intensity",
            f"def {FUNCTION}_by_intensity",
            f"new-exercise 02 {FUNCTION}",
            f"a known answer of {LESSON} is named {FUNCTION}_… already",
        ),
        (
            f"solutions/{LESSON}/{LESSON}.ipynb",
            r'"import torch\.distributed as dist\\n"',
            r'"\\n"',
            f"new-exercise 02 {FUNCTION} --ranks",
            f"no setup cell of {LESSON} imports dist: import it there first",
        ),
    ],
)
def test_what_lacks_its_place_is_refused(root, capsys, file, old, new, line, says):
    text, count = re.subn(old, new, (root / file).read_text(), count=1)
    assert count
    (root / file).write_text(text)
    refused_in_one_line(root, capsys, line, says)


# Texts


def test_the_templates_files_are_filled_in(root):
    texts = generator.lesson_texts(root, NAME)
    assert sorted(texts) == sorted([*NEW, *LISTS])
    for name in NEW:
        assert not re.search(r"NN|TOPIC|TITLE|ex0|Replace this", texts[name]), name
    nb = nbformat.reads(texts[NEW[0]], as_version=4)
    assert nb.cells[0].source.startswith("# 98 · Tiny talk\n") and nb.cells[0].metadata.tags == ["draft"]
    assert [cell.id for cell in nb.cells[-5:]] == [
        "98-ex1", "98-ex1-mean-over-ranks", "98-ex1-try", "98-ex1-mean-over-ranks-test", "98-takeaways",
    ]  # fmt: skip
    assert "About 1 hour · 3 points" in nb.cells[0].source and 20 < rules.words_of(nb.cells[-5].source) <= 120
    assert re.findall(r"points=([\d.]+)", texts[NEW[1]]) == ["1.75", "1", "0.25"]


def test_the_pages_of_reference_find_what_they_collect(root):
    """Else the book does not build with the lesson: a chapter without key terms is a warning, which stops it."""
    texts = generator.lesson_texts(root, NAME)
    chapter, title = texts[f"book/{NAME}.md"], json.loads(texts[NEW[0]])
    assert len(collected.terms(chapter)) >= 3 and len(collected.questions(chapter)) >= 3
    assert all(find(chapter) for _, find in collected.PAGES.values())
    assert collected._hours(title) == "1 hour"


def rows(text):
    return re.findall(r"^\| (\d\d) \| (.*?) \|.*\| (\S+) \|$", text, re.MULTILINE)


def assignment(folder, lesson):
    return f"[assignment]({'' if folder else '../'}notebooks/{lesson}/{lesson}.ipynb)"


@pytest.mark.parametrize(("page", "folder"), rules.TABLES.items())
def test_a_new_row_stands_after_the_number_before_it(root, page, folder):
    before, after = (root / page).read_text(), generator.lesson_texts(root, "18_tiny")[page]
    assert rows(after) == [*rows(before), ("18", f"[Tiny]({folder}18_tiny.md)", assignment(folder, "18_tiny"))]
    assert len(after.splitlines()) == len(before.splitlines()) + 1


@pytest.mark.parametrize(("page", "folder"), rules.TABLES.items())
def test_a_planned_row_is_replaced_and_keeps_its_title(root, page, folder):
    text = "| 09 | [A](09_a.md) | a | [assignment](09) |\n| 10 | Big memory | what it holds | planned |\n"
    for name in rules.TABLES:
        (root / name).write_text(text)
    texts = generator.lesson_texts(root, "10_memory")
    link = assignment(folder, "10_memory")
    assert rows(texts[page])[1] == ("10", f"[Big memory]({folder}10_memory.md)", link)
    assert f"| what it holds | {link} |" in texts[page] and texts[page].count("\n") == 2
    assert "\n# Big memory\n" in texts["book/10_memory.md"]


def entry(lesson, name):
    """A lesson's chapter in the table of contents."""
    return (
        f"      - file: book/{lesson}\n        title: {lesson[:2]} · {name}\n        sections:\n"
        f"          - file: notebooks/{lesson}/{lesson}\n            title: The assignment\n"
    )


PARTS = (
    f"parts:\n  - caption: Part I\n    chapters:\n{entry('01_a', 'A')}{entry('09_b', 'B')}"
    f"  - caption: Part II\n    chapters:\n{entry('17_c', 'C')}  - caption: Reference\n"
)


@pytest.mark.parametrize(
    ("name", "before"), [("02_new", ("01_a", "A")), ("10_new", ("09_b", "B")), ("18_new", ("17_c", "C"))]
)
def test_the_books_pages_list_it_in_the_part_of_its_neighbor(name, before):
    expected = PARTS.replace(entry(*before), entry(*before) + entry(name, "New"))
    assert generator.in_toc(PARTS, name, "New") == expected


def test_a_lesson_before_all_others_is_the_first():
    made = generator.in_toc("  - file: book/02_b\n    sections:\n      - file: b\n", "01_a", "A")
    assert made.index("01_a") < made.index("02_b")


# Failures midway


@pytest.mark.parametrize("fails_at", range(len(NEW) + len(LISTS)))
def test_a_full_disk_leaves_everything_as_it_was(root, capsys, monkeypatch, fails_at):
    before, count, real = contents(root), iter(range(100)), os.replace

    def replace(*paths):
        if next(count) == fails_at:
            raise OSError(28, "No space left on device")
        real(*paths)

    monkeypatch.setattr(files.os, "replace", replace)
    assert main(["new-lesson", NAME]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert contents(root) == before
    assert not (root / "solutions" / NAME).exists()


@pytest.mark.parametrize("error", [ValueError("refused"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("command", "lesson", "written", "arguments"),
    [
        (generator.new_lesson, NAME, NEW[0], {"lesson": NAME}),
        (
            generator.new_exercise,
            LESSON,
            f"solutions/{LESSON}/checks/{FUNCTION}.py",
            {"lesson": "02", "function": FUNCTION, "points": 2.0, "ranks": False},
        ),
    ],
)
def test_a_release_that_fails_leaves_everything_as_it_was(
    root, monkeypatch, error, command, lesson, written, arguments
):
    before = contents(root)

    def fail(lessons):
        assert (root / written).is_file()
        (root / "notebooks" / lesson).mkdir(parents=True)
        (root / "notebooks" / lesson / f"{lesson}.ipynb").write_text("half")
        raise error

    monkeypatch.setattr(release, "release", fail)
    with pytest.raises(type(error)):
        command(argparse.Namespace(**arguments))
    assert contents(root) == before
    assert not (root / "solutions" / NAME).exists() and not (root / "notebooks" / NAME).exists()


# What is planned


def test_the_exercise_has_all_its_parts_and_the_totals_are_right(root):
    texts = generator.exercise_texts(root, LESSON, FUNCTION, 0.5)
    assert list(texts) == [
        f"solutions/{LESSON}/{name}"
        for name in (f"{LESSON}.ipynb", f"checks/{FUNCTION}.py", "wrong.md", "verdicts.txt", "right.py")
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


def test_a_module_of_checks_gets_the_imports_that_it_lacks_and_no_other(root):
    first, second = (
        (generator.TEMPLATES / folder / "checks.py").read_text()
        for folder, _ in (generator.EXERCISES[True], generator.EXERCISES[False])
    )
    text = generator.appended(notebook.ROOT / "solutions" / LESSON / "checks.py", first, second)
    head, _, code = text.partition('@check("NN-ex0-new-function"')
    assert code and head.count("import check\n") == 1 and head.count("import numpy as np\n") == 1
    assert "from fractions import Fraction\n" in head
    assert "from autograder.checks.cases import ANYTHING, Call, Case, close, fact, sentence\n" in head
    assert text.startswith(first.partition("from collections")[0])
    with pytest.raises(ValueError, match=r"checks\.py defines Outcome already: make a package of it"):
        generator.appended(notebook.ROOT / "solutions" / LESSON / "checks.py", text, first)


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
    """A copy of the repository with a new lesson, and what the command said."""
    root = tmp_path_factory.mktemp("course") / "repository"
    left_out = shutil.ignore_patterns(".*", "_build", "__pycache__", "*.egg-info", "submitted", "*.mine*.ipynb")
    shutil.copytree(notebook.ROOT, root, ignore=left_out)
    return root, run(root, "-m", "autograder", "new-lesson", NAME)


@pytest.fixture(scope="module")
def with_exercise(made):
    """The same copy with a new exercise of another lesson, for tests behind the lesson's; what the command said."""
    status, said = command(made[0], "new-exercise", "02", FUNCTION, "--points", "2")
    assert status == 0, said
    return made[0], said


def run(root: Path, *arguments: str) -> str:
    """What `python …` prints with the packages of the copy; it must succeed."""
    environment = os.environ | {"PYTHONPATH": str(root), "JUPYTER_PREFER_ENV_PATH": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def command(root: Path, *arguments: str) -> tuple[int, str]:
    """The exit status of `autograder …` with the packages of the copy, and what it prints."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    del environment[check.SEED]  # what is recorded must be seen on two draws of inputs
    done = subprocess.run(
        [sys.executable, "-m", "autograder", *arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_command_says_what_it_wrote_and_what_is_lacking(made):
    root, said = made
    for name in [*NEW, *LISTS, f"notebooks/{NAME}/{NAME}.ipynb"]:
        assert f"{name} written\n" in said
        assert (root / name).is_file()
    assert f"{NAME} is a draft: cells 11 (35 to 60), exercises 1 (3 to 7), words in the chapter " in said
    assert run(root, "-m", "autograder", "drafts") in said


@pytest.mark.slow
@pytest.mark.thorough
def test_a_new_lesson_is_graded_rightly(made):
    said = run(made[0], "-m", "autograder", "audit", NAME)
    assert said.endswith("\n6 of 6 cases hold\n")
    assert re.search(rf"^{NAME} +1/1 +1/1 +3/3 +1/1$", said, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_new_lesson_runs(made):
    run(made[0], "-m", "autograder", "run", NAME)
    run(made[0], "-m", "autograder", "run", NAME, "-p", "WORLD_SIZE", "3")


@pytest.mark.slow
@pytest.mark.thorough
def test_a_new_lesson_and_its_lists_pass_the_tests_of_style(made):
    root, tests = made[0], [str(path) for path in STYLE]
    said = run(root, "-m", "pytest", "-q", *tests)
    assert "failed" not in said and "skipped" not in said
    collected = run(root, "-m", "pytest", "-q", "--collect-only", *tests[:2])
    assert collected.count(f"[{NAME}]") == collected.count("[01_collectives]") > 0
    run(root, "-m", "ruff", "check", ".")
    run(root, "-m", "ruff", "format", "--check", ".")


@pytest.mark.slow
@pytest.mark.thorough
def test_the_chapter_of_a_new_lesson_is_built_without_a_warning(made):
    shutil.copytree(notebook.ROOT / ".ci", made[0] / ".ci", dirs_exist_ok=True)
    said = run(made[0], ".ci/page.py", "chapter", NAME)
    assert re.fullmatch(rf"The page: \S+/{NAME}\.html\n", said), said
    page = Path(said.split()[-1]).read_text()
    assert "<img" in page and "alt=" in page and "a rank that has left" in page


@pytest.mark.slow
@pytest.mark.thorough
def test_the_command_names_each_place_that_is_to_be_replaced(with_exercise):
    root, said = with_exercise
    assert "02-ex7 passes its tests. Replace what it holds:" in said
    for what in ("statement 02-ex7", f"check {FUNCTION}_is_bytes_over_seconds", f"wrong answer {FUNCTION}_multiplies"):
        assert re.search(rf"^\S+:\d+ +{what}$", said, re.MULTILINE), said
    status, tried = command(root, "try", "02-ex7")
    named = set(re.findall(r"^  (\S+):\d+: 02-ex7 is the example of new-exercise here", tried, re.MULTILINE))
    files = ("02_costs.ipynb", f"checks/{FUNCTION}.py", "right.py", "wrong.md")
    assert status == 1 and named == {f"solutions/{LESSON}/{name}" for name in files}
    assert command(root, "try", "02-ex5")[0] == 0, "lines of another exercise are not shown"


def replace(root: Path, name: str, old: str, new: str) -> None:
    path = root / "solutions" / LESSON / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.slow
@pytest.mark.jail
def test_what_is_wrong_with_an_exercise_is_said_and_a_good_one_passes(with_exercise):
    root = with_exercise[0]
    for name in (f"{LESSON}.ipynb", f"checks/{FUNCTION}.py", "right.py", "wrong.md"):
        replace(root, name, "Replace this", "Here is")
    status, said = command(root, "try", "02-ex7")
    assert status == 0 and re.search(r"\n02-ex7: no problems; [\d.]+ s of processor time\n$", said), said
    assert f"notebooks/{LESSON}/{LESSON}.ipynb written" in said, "the released notebook is brought up to date"
    assert "\naudited: good\njailed: good\n" in said
    assert f"\n  {FUNCTION}_is_bytes_over_seconds, 2 points: 1 wrong answers fail it, 1 alone\n" in said
    planted = [
        ("right.py", "return 1 / (seconds / nbytes)", "import os; return 1 / (seconds * nbytes)"),
        ("wrong.md", "+    return nbytes * seconds", "+    return nbytes / (seconds)"),
        (f"{LESSON}.ipynb", "· 18 points", "· 16 points"),
        (f"{LESSON}.ipynb", "Here is. Return ", f"Here is. {'word ' * 200}Return "),
        (f"checks/{FUNCTION}.py", "gives=close(expected, ", "gives=close(expected,  "),
        ("wrong.md", "Here is. You", "Here is.  \nYou"),
    ]
    for name, old, new in planted:
        replace(root, name, old, new)
    status, said = command(root, "try", "02-ex7")
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
    status, said = command(root, "try", "02-ex7", "--record")
    assert status == 0 and f"+  {FUNCTION}_multiplies: core" in said, said


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.jail
def test_the_worked_exercise_of_the_guide_is_good(with_exercise):
    """Its parts in the place of those that `new-exercise` has made; nothing else is written."""
    root, solution = with_exercise[0], with_exercise[0] / "solutions" / LESSON
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
    said = command(root, "try", "02-ex7")[1]
    record = (
        "\n  forgets_the_second_half, takes_any_number_of_ranks are not recorded: make audit LESSONS=02-ex7 RECORD=1\n"
    )
    assert record in worked
    assert record in said and said.count("recorded") == said.count("not recorded") + 1 == 4, said
    status, said = command(root, "audit", "02-ex7", "--record")
    recorded = re.search(r"^solutions/\S+verdicts\.txt:\n(  .*\n)+", worked, re.MULTILINE)[0]
    assert status == 0 and recorded.splitlines()[-2:] == [line for line in said.splitlines() if line.startswith("  +")]
    status, said = command(root, "try", "02-ex7")
    assert status == 0 and "style: good\naudited: good\njailed: good\n" in said, said


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.jail
def test_an_exercise_on_ranks_is_good_as_it_is(with_exercise):
    root = with_exercise[0]
    assert command(root, "new-exercise", "04", "shared_mean", "--points", "2", "--ranks")[0] == 0
    for path in (root / "solutions" / "04_accumulation").rglob("*"):
        if path.suffix in (".ipynb", ".py", ".md"):
            path.write_text(path.read_text().replace("Replace this. ", ""))
    status, said = command(root, "try", "04-ex6")
    assert status == 0 and "style: good\naudited: good\njailed: good\n" in said, said
    assert "  shared_mean_sends_it_once, 0.5 points: 1 wrong answers fail it, 1 alone\n" in said, said


def test_an_exercise_that_does_not_exist_is_named_in_one_line(capsys):
    assert main(["try", "02-ex9"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("autograder: 02_costs has no exercise 02-ex9; it has: ") and error.count("\n") == 1
    assert where.find("02-ex6").cell == "02-ex6-roofline"
