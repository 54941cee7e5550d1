"""`make handout`: what students get holds what they need, and no answer and no hidden test."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import nbformat
import pytest

from autograder.__main__ import main
from autograder.author import handout
from autograder.grade.nbgrader import release
from autograder.lesson import notebook


def unpack(folder: Path, to: Path) -> Path:
    """The folder that a student has after unpacking the zip next to `folder`."""
    with zipfile.ZipFile(folder.with_suffix(".zip")) as archive:
        archive.extractall(to)
    return to / handout.NAME


def names(folder: Path) -> set[str]:
    """The files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def released(monkeypatch):
    """Take the notebooks as they are in `notebooks/`: test_release.py says that these are what the solutions give."""

    @contextlib.contextmanager
    def generated(lessons, own=None):
        yield [(name, notebook.NOTEBOOKS / name) for name in lessons]

    monkeypatch.setattr(release, "generated", generated)


def test_what_is_handed_out_is_on_the_list(released, tmp_path):
    said = handout.write(tmp_path / "handout")
    found = names(unpack(tmp_path / "handout", tmp_path / "student"))
    lessons = [name for name in notebook.lessons() if name not in handout.LATER]
    assert len(lessons) >= 16 and any(f"({len(lessons)} lessons)" in line for line in said)
    wanted = {f"notebooks/{name}/{file}" for name in lessons for file in (f"{name}.ipynb", "AGENTS.md")}
    wanted |= {f"{one}/{path.name}" for one in notebook.PACKAGES for path in (notebook.ROOT / one).glob("*.*")}
    assert found == wanted | {"README.md", "pyproject.toml", *handout.COPIED}


def test_no_mark_of_an_answer_or_a_hidden_test_is_in_it(released, tmp_path):
    """Nor a line of one: test_kept_back.py looks at all that is handed out."""
    handout.write(tmp_path / "handout")
    folder = unpack(tmp_path / "handout", tmp_path / "student")
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())
    assert "BEGIN HIDDEN TESTS" not in text and "BEGIN SOLUTION" not in text and "autograder.checks" not in text


def test_a_lesson_whose_modules_answer_others_is_handed_out_by_name_only(released, tmp_path):
    said = handout.write(tmp_path / "handout")
    assert any(line.startswith("17_capstone is left out: its pieces.py contains answers to lessons") for line in said)
    said = handout.write(tmp_path / "handout", ["17"])
    assert not any("left out" in line for line in said)
    found = names(tmp_path / "handout" / "notebooks")
    assert found == {f"17_capstone/{name}" for name in ("17_capstone.ipynb", "AGENTS.md", "faults.py", "pieces.py")}


def test_an_unknown_lesson_is_refused_in_one_line(capsys):
    assert main(["handout", "99"]) == 2
    assert capsys.readouterr().err.startswith("autograder: no lesson '99'; there are: 01_collectives, ")


#: Runs the notebook's cells up to its parameters, as a student does first.
FIRST_CELLS = """
import sys
import nbformat
for cell in nbformat.read(sys.argv[1], as_version=4).cells:
    if cell.cell_type == "code":
        exec(cell.source)
        if cell.id.endswith("-parameters"):
            break
import ranks
print(ranks.__file__, ranks.run(lambda rank, world_size: rank, 2))
"""


@pytest.mark.slow
def test_what_is_handed_out_installs_and_its_notebooks_start(tmp_path):
    """With `ranks` from the zip alone, made as the command makes it."""
    handout.write(tmp_path / "handout", ["03", "17"])
    folder, place = unpack(tmp_path / "handout", tmp_path / "student"), tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*pip, str(place), str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert {name for name in names(place) if ".dist-info/" not in name and not name.endswith(".pyc")} == {
        f"{one}/{path.name}"
        for one in notebook.PACKAGES
        for path in (notebook.ROOT / one).iterdir()
        if path.suffix in (".py", ".typed")
    }
    handed_out, ours = (tomllib.loads((root / "pyproject.toml").read_text()) for root in (folder, notebook.ROOT))
    assert handed_out["project"] == ours["project"] and handed_out["build-system"] == ours["build-system"]
    assert handed_out["tool"].keys() == {"setuptools", "distutils"} and "ruff" in ours["tool"]
    command = next(line for line in (folder / "README.md").read_text().splitlines() if " pip install " in line)
    assert re.search(r'"\.\[(\w+)\]"', command)[1] in handed_out["project"]["optional-dependencies"]
    for lesson in ("03_step", "17_capstone"):
        path = folder / "notebooks" / lesson / f"{lesson}.ipynb"
        assert nbformat.read(path, as_version=4) == nbformat.read(notebook.NOTEBOOKS / lesson / path.name, as_version=4)
        done = subprocess.run(
            [sys.executable, "-c", FIRST_CELLS, str(path)],
            cwd=path.parent,
            env={**os.environ, "PYTHONPATH": str(place), "MPLBACKEND": "agg"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.stdout.endswith(f"{place / 'ranks' / '__init__.py'} [0, 1]\n"), done.stderr
