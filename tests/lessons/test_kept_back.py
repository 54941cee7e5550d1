"""What students, kernels and the jail get of a lesson's folder: what is listed here, and nothing else in it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import papermill
import pytest

from autograder.author import handout
from autograder.checks import module
from autograder.grade.course import Course
from autograder.grade.nbgrader import library, release
from autograder.lesson import notebook, pieces, run_solutions
from tests.helpers.jailed import run
from tests.helpers.modules import import_checks
from tests.helpers.notebook_regions import split

#: Lesson → the files that its notebook finds beside itself. No other lesson has any.
FILES = {"17_capstone": {"faults.py", "pieces.py"}}
#: What somebody may leave in a lesson's folder, or what is there and holds answers.
PLANTED = (
    "notes.txt",
    "draft.ipynb",
    "notes.py",
    "more/answers.py",
    "checks/notes.txt",
    "checks/more.py",
    "files/.hidden",
    "files/draft.ipynb",
    "files/__pycache__/pieces.pyc",
)
SECRET = "planted"

each_lesson = pytest.mark.parametrize("lesson", notebook.lessons())


def names(folder: Path) -> set[str]:
    """The files below a folder, links included."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def solutions(tmp_path_factory):
    """A copy of all solutions, with secrets planted in each lesson's folder."""
    folder = tmp_path_factory.mktemp("course") / "solutions"
    shutil.copytree(notebook.SOLUTIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for lesson in notebook.lessons():
        for name in PLANTED:
            path = folder / lesson / name
            path.parent.mkdir(parents=True, exist_ok=True)
            nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(SECRET)])
            path.write_text(nbformat.writes(nb) if path.suffix == ".ipynb" else f"# {SECRET}\n")
        (folder / lesson / "files" / "link.md").symlink_to(folder / lesson / "wrong.md")
    return folder


@pytest.fixture
def planted(solutions, monkeypatch):
    """The same, in the place of the repository's."""
    monkeypatch.setattr(notebook, "SOLUTIONS", solutions)
    return solutions


# Students


@pytest.fixture(scope="module")
def released(solutions, tmp_path_factory):
    """What is made of the lessons for students, as `make notebooks` and `make handout` take it."""
    folder = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebook, "SOLUTIONS", solutions)
        with release.generated(None) as made:
            for lesson, source in made:
                shutil.copytree(source, folder / lesson)
    return folder


@each_lesson
def test_students_get_the_notebook_and_its_files(released, lesson):
    assert names(released / lesson) == {f"{lesson}.ipynb", "AGENTS.md", *FILES.get(lesson, ())}
    for name in names(released / lesson):
        assert (released / lesson / name).read_bytes() == (notebook.NOTEBOOKS / lesson / name).read_bytes()


def test_the_zip_holds_them_and_no_others(planted, released, tmp_path, monkeypatch):
    (released / "01_collectives" / "left-there.py").touch()
    made = [(lesson, released / lesson) for lesson in notebook.lessons()]
    monkeypatch.setattr(release, "generated", lambda lessons, own: contextlib.nullcontext(made))
    handout.write(tmp_path / "handout", notebook.lessons())
    (released / "01_collectives" / "left-there.py").unlink()
    files = {lesson: (f"{lesson}.ipynb", "AGENTS.md", *FILES.get(lesson, ())) for lesson in notebook.lessons()}
    assert names(tmp_path / "handout" / "notebooks") == {f"{one}/{name}" for one in files for name in files[one]}


@pytest.mark.slow
@pytest.mark.parametrize("lesson", ["08_zero1", "17_capstone"])
def test_nbgraders_own_command_gives_no_more(solutions, lesson):
    """An instructor may call it, and formgrader's button does the same."""
    course = solutions.parent
    shutil.copy(notebook.ROOT / library.CONFIG, course)
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", lesson, "--force"]
    done = subprocess.run(command, cwd=course, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert names(course / "notebooks" / lesson) == {f"{lesson}.ipynb", *FILES.get(lesson, ())}


# Kernels


@each_lesson
def test_a_kernel_finds_the_files_in_its_folder(planted, lesson, tmp_path, monkeypatch):
    found = {}

    def look(source, output, cwd, **_):
        found[lesson] = names(Path(cwd))
        shutil.copy(source, output)

    monkeypatch.setattr(papermill, "execute_notebook", look)
    run_solutions.run(lesson, progress=False, folder=tmp_path)
    assert found == {lesson: FILES.get(lesson, set())}


def test_no_checks_can_be_imported_by_accident(planted, monkeypatch):
    before = [place for place in sys.path if Path(place).parent != notebook.NOTEBOOKS]  # what other tests have added
    monkeypatch.setattr(sys, "path", list(before))
    notebook.fresh_namespace()
    assert set(sys.path) - set(before) == {str(notebook.NOTEBOOKS / lesson) for lesson in FILES}
    assert importlib.util.find_spec("pieces")
    assert not any(importlib.util.find_spec(name) for name in ("checks", "notes", "more", "right"))


# The jail


@pytest.fixture(scope="module")
def course(solutions, tmp_path_factory):
    """A course with these solutions."""
    root = tmp_path_factory.mktemp("class")
    (root / "solutions").symlink_to(solutions)
    return Course(root)


@each_lesson
def test_the_jail_gets_the_files_in_its_folder(course, lesson):
    course.prepare(lesson)
    assert set(course.task("", lesson).files) == FILES.get(lesson, set())


@pytest.mark.jail
def test_a_submission_finds_no_checks_and_no_answers(jail, solutions):
    folder = tempfile.mkdtemp(dir="/tmp")
    jailed = jail.start(folder, pieces.companions(solutions / "17_capstone"))
    try:
        assert run(jailed, "import os; print(sorted(os.listdir('.')))")[0] == f"{sorted(FILES['17_capstone'])}\n"
        for name in ("autograder.checks", "checks", "solutions", "right"):
            assert run(jailed, f"import {name}")[1] == "ModuleNotFoundError"
        secrets = [
            module("08_zero1").__file__,
            notebook.SOLUTIONS / "08_zero1" / "wrong.md",
            solutions / "08_zero1" / "notes.txt",
        ]
        for path in secrets:
            assert Path(path).is_file()
            assert run(jailed, f"open({str(path)!r})")[1] == "FileNotFoundError"
        # Of the clone it sees at most the environment, if that was made there.
        look = f"import os; root = {str(notebook.ROOT)!r}; print(os.listdir(root) if os.path.exists(root) else [])"
        assert run(jailed, look)[0] in ("[]\n", f"[{Path(sys.prefix).name!r}]\n")
    finally:
        jailed.end()
        os.rmdir(folder)


# Everywhere else

#: What else holds answers, and what students get.
ALSO, HANDED_OUT = "notebooks/17_capstone/pieces.py", ("notebooks/", "ranks/", "machines/")


def tracked() -> list[str]:
    """The files of the repository, as git lists them; without git, those that are no build's."""
    done = subprocess.run(["git", "ls-files"], cwd=notebook.ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout.splitlines()
    return [name for name in names(notebook.ROOT) if not name.startswith((".", "_build"))]


def lines_of(path: Path) -> set[str]:
    """The lines of a text, or of a notebook's cells, stripped; none for other files."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return set()
    if path.suffix == ".ipynb":
        text = "\n".join(cell.source for cell in nbformat.reads(text, as_version=4).cells)
    return {line.strip() for line in text.splitlines()}


def test_no_other_file_of_the_repository_holds_answers_or_checks():
    """The instructor's page says what to keep back. What is handed out quotes no line, a test one here and there."""
    parts = [split(lesson, "SOLUTION", "HIDDEN TESTS") for lesson in notebook.lessons()]
    public = {"from __future__ import annotations", *(line for _, shown in parts for line in shown)}
    hidden = {line for lines, _ in parts for line in lines}
    hidden |= {line for path in notebook.SOLUTIONS.glob("*/right.py") for line in lines_of(path)}
    hidden = {line for line in hidden - public if len(line) > 30}
    assert len(hidden) > 2000
    others = [name for name in tracked() if not name.startswith(("solutions/", ALSO))]
    found = {name: len(hidden & lines_of(notebook.ROOT / name)) for name in others}
    assert not {name: count for name, count in found.items() if count > 9 or (count and name.startswith(HANDED_OUT))}
    assert not [name for name in found if Path(name).name in ("wrong.md", "verdicts.txt") and "/templates/" not in name]
    assert len(hidden & lines_of(notebook.ROOT / ALSO)) > 50


def test_each_lessons_checks_are_found_in_its_folder():
    modules = import_checks()
    assert len(modules) > 100 and len({one.__name__ for one in modules}) == len(modules)
    for one in modules:
        assert Path(one.__file__).relative_to(notebook.SOLUTIONS).parts[0] == one.__name__.split(".")[2]
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'autograder\.checks\.99_zero9'"):
        module("99_zero9")
