"""`autograder new-lesson`: a lesson that is whole, and nothing of one where there can be none."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder.__main__ import main
from autograder.authoring import new_lesson
from autograder.lessons import files, notebook, release

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))
import collected

NAME = "98_tiny_talk"
NEW = [
    "solutions/98_tiny_talk/98_tiny_talk.ipynb",
    "solutions/98_tiny_talk/checks.py",
    "solutions/98_tiny_talk/wrong.md",
    "solutions/98_tiny_talk/verdicts.txt",
    "solutions/98_tiny_talk/right.py",
    "book/98_tiny_talk.md",
]
LISTS = ["_toc.yml", "README.md", "book/index.md"]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with two solutions and the pages that list the lessons."""
    for name in ("solutions/01_collectives/01_collectives.ipynb", "solutions/17_capstone/17_capstone.ipynb", *LISTS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebook.ROOT / name, tmp_path / name)
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    monkeypatch.setattr(notebook, "NOTEBOOKS", tmp_path / "notebooks")
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    """The files below a folder, with their bytes."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# Names


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tiny", "'tiny' is not a lesson's name"),
        ("98_Tiny", "'98_Tiny' is not a lesson's name"),
        ("98_tiny-talk", "'98_tiny-talk' is not a lesson's name"),
        ("98_../../etc", "'98_../../etc' is not a lesson's name"),
        ("98_class", "'98_class' is not a lesson's name"),
        ("100_tiny", "'100_tiny' is not a lesson's name"),
        ("00_tiny", "lessons have numbers from 01 to 99"),
        ("17_tiny", "the number 17 is taken: 17_capstone"),
        ("98_capstone", "the topic capstone is taken: 17_capstone"),
        ("98_begun", "solutions/98_begun exists, though there is no lesson 98_begun: move it away first"),
        ("98_told", "book/98_told.md exists, though there is no lesson 98_told: move it away first"),
    ],
)
def test_a_name_that_cannot_be_is_refused_in_one_line_and_nothing_is_written(root, capsys, name, says):
    (root / "solutions" / "98_begun").mkdir()
    (root / "solutions" / "98_begun" / "wrong.md").touch()
    (root / "book" / "98_told.md").touch()
    before = contents(root)
    assert main(["new-lesson", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"autograder: {says}") and error.count("\n") == 1
    assert contents(root) == before


# Texts


def test_the_templates_files_are_filled_in(root):
    texts = new_lesson.plan(root, NAME)
    assert list(texts) == [*NEW, *LISTS]
    for name in NEW:
        assert not re.search(r"NN|TOPIC|TITLE", texts[name]), name
    nb = nbformat.reads(texts[NEW[0]], as_version=4)
    assert nb.cells[0].source.startswith("# 98 · Tiny talk\n") and nb.cells[0].metadata.tags == ["draft"]
    assert 'try_exercise("98-ex1-mean-over-ranks", mean_over_ranks=mean_over_ranks)' in nb.cells[-2].source


def test_the_pages_of_reference_find_what_they_collect(root):
    """Else the book does not build with the lesson: a chapter without key terms is a warning, which stops it."""
    texts = new_lesson.plan(root, NAME)
    chapter, title = texts[f"book/{NAME}.md"], json.loads(texts[NEW[0]])
    assert len(collected.terms(chapter)) >= 3 and len(collected.questions(chapter)) >= 3
    assert all(find(chapter) for _, find in collected.PAGES.values())
    assert collected._hours(title) == "1 hour"


def rows(text):
    return re.findall(r"^\| (\d\d) \| (.*?) \|.*\| (\S+) \|$", text, re.MULTILINE)


def assignment(folder, lesson):
    return f"[assignment]({'' if folder else '../'}notebooks/{lesson}/{lesson}.ipynb)"


@pytest.mark.parametrize(("page", "folder"), new_lesson.TABLES.items())
def test_a_new_row_stands_after_the_number_before_it(root, page, folder):
    before, after = (root / page).read_text(), new_lesson.plan(root, "18_tiny")[page]
    assert rows(after) == [*rows(before), ("18", f"[Tiny]({folder}18_tiny.md)", assignment(folder, "18_tiny"))]
    assert len(after.splitlines()) == len(before.splitlines()) + 1


@pytest.mark.parametrize(("page", "folder"), new_lesson.TABLES.items())
def test_a_planned_row_is_replaced_and_keeps_its_title(root, page, folder):
    text = "| 09 | [A](09_a.md) | a | [assignment](09) |\n| 10 | Big memory | what it holds | planned |\n"
    for name in new_lesson.TABLES:
        (root / name).write_text(text)
    texts = new_lesson.plan(root, "10_memory")
    link = assignment(folder, "10_memory")
    assert rows(texts[page])[1] == ("10", f"[Big memory]({folder}10_memory.md)", link)
    assert f"| what it holds | {link} |" in texts[page] and texts[page].count("\n") == 2
    assert "\n# Big memory\n" in texts["book/10_memory.md"]


PARTS = """parts:
  - caption: Part I
    chapters:
      - file: book/01_a
        title: 01 · A
        sections:
          - file: notebooks/01_a/01_a
            title: The assignment
      - file: book/09_b
        title: 09 · B
        sections:
          - file: notebooks/09_b/09_b
            title: The assignment
  - caption: Part II
    chapters:
      - file: book/17_c
        title: 17 · C
        sections:
          - file: notebooks/17_c/17_c
            title: The assignment
  - caption: Reference
"""


@pytest.mark.parametrize(("name", "before"), [("02_new", "01_a"), ("10_new", "09_b"), ("18_new", "17_c")])
def test_the_books_pages_list_it_in_the_part_of_its_neighbor(name, before):
    made = new_lesson.in_toc(PARTS, name, "New")
    entry = next(piece for piece in PARTS.split("      - file: book/") if piece.startswith(before))
    entry = entry.split("  - caption")[0]
    new = re.sub(r"title: \d\d · .", f"title: {name[:2]} · New", entry.replace(before, name))
    assert f"      - file: book/{entry}      - file: book/{new}" in made
    assert made.replace(f"      - file: book/{new}", "") == PARTS


def test_a_lesson_before_all_others_is_the_first(root):
    made = new_lesson.in_toc("  - file: book/02_b\n    sections:\n      - file: b\n", "01_a", "A")
    assert made.index("01_a") < made.index("02_b")


@pytest.mark.parametrize(("page", "says"), [("README.md", "README.md has no table"), ("_toc.yml", "_toc.yml lists no")])
def test_a_page_without_a_list_is_named_and_nothing_is_written(root, capsys, page, says):
    (root / page).write_text("nothing\n")
    before = contents(root)
    assert main(["new-lesson", NAME]) == 2
    assert capsys.readouterr().err.startswith(f"autograder: {says}")
    assert contents(root) == before


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
def test_a_release_that_fails_leaves_everything_as_it_was(root, monkeypatch, error):
    before = contents(root)

    def fail(lessons):
        assert (root / NEW[0]).is_file()
        (root / "notebooks" / NAME).mkdir(parents=True)
        (root / "notebooks" / NAME / "half.ipynb").write_text("half")
        raise error

    monkeypatch.setattr(release, "release", fail)
    with pytest.raises(type(error)):
        new_lesson.command(type("Arguments", (), {"lesson": NAME}))
    assert contents(root) == before
    assert not (root / "solutions" / NAME).exists() and not (root / "notebooks" / NAME).exists()


# A whole lesson, in a copy of the repository


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A copy of the repository with a new lesson, and what the command said."""
    root = tmp_path_factory.mktemp("course") / "repository"
    left_out = shutil.ignore_patterns(".*", "_build", "__pycache__", "*.egg-info", "submitted", "*.mine*.ipynb")
    shutil.copytree(notebook.ROOT, root, ignore=left_out)
    return root, run(root, "-m", "autograder", "new-lesson", NAME)


def run(root: Path, *arguments: str) -> str:
    """What `python …` prints with the packages of the copy; it must succeed."""
    environment = os.environ | {"PYTHONPATH": str(root), "JUPYTER_PREFER_ENV_PATH": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


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
    root, tests = made[0], [f"tests/test_{name}.py" for name in ("style", "lessons", "skippable", "collected")]
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
