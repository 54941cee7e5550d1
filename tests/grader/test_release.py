"""Released notebooks follow from the solutions, byte for byte, and nobody's work is lost on the way."""

from __future__ import annotations

import nbformat
import pytest

from autograder.__main__ import main
from autograder.grade.nbgrader import release
from autograder.lesson import notebook
from tests.helpers import tiny_lesson as tiny


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one tiny lesson in a folder of its own."""
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    monkeypatch.setattr(notebook, "NOTEBOOKS", tmp_path / "notebooks")
    tiny.lesson(tmp_path / "solutions")
    return tmp_path


def released(course):
    return course / "notebooks" / "98_tiny" / "98_tiny.ipynb"


def cells(course):
    return {cell.id: cell for cell in nbformat.read(released(course), as_version=4).cells}


def test_notebooks_are_what_the_solutions_give():
    assert release.stale() == []


def test_answers_and_hidden_tests_are_cut_and_the_rest_stays(course):
    release.release()
    text, made = released(course).read_text(), cells(course)
    assert tiny.ANSWER not in text and "hidden" not in text.lower()
    assert list(made) == [cell.id for cell in notebook.read("98_tiny").cells]
    stub, test = made["98-ex1-twice"].source, made["98-ex1-twice-test"]
    assert stub.endswith('    raise NotImplementedError("write this function")')
    assert stub.startswith('def twice(x):\n    """Two times x."""')
    assert "assert twice(2) == 4" in test.source and test.metadata.nbgrader.points == 3


def test_each_lesson_comes_with_a_tutor_for_assistants(course):
    release.release()
    text, stub = (released(course).parent / "AGENTS.md").read_text(), cells(course)["98-ex1-twice"].source
    assert text == notebook.AGENTS.read_text()
    assert "raise NotImplementedError" in stub and "`raise NotImplementedError`" in text, "the file names the stub"


def test_check_names_what_is_stale_and_changes_nothing(course, capsys):
    assert main(["release", "--check"]) == 1
    missing = [f"notebooks/98_tiny/{name} is missing: run `make notebooks`" for name in ("98_tiny.ipynb", "AGENTS.md")]
    assert capsys.readouterr().out.splitlines() == missing
    assert not released(course).exists()
    release.release()
    assert main(["release", "--check"]) == 0 and release.release() == []
    released(course).write_bytes(released(course).read_bytes() + b"\n")
    assert main(["release", "--check", "98_tiny"]) == 1
    assert "stale" in capsys.readouterr().out


def test_answers_in_a_notebook_are_kept(course):
    release.release()
    stub = 'raise NotImplementedError(\\"write this function\\")'
    for number, name in enumerate(["98_tiny.mine.ipynb", "98_tiny.mine-2.ipynb"]):
        answered = released(course).read_text().replace(stub, f"return {number} + 2 * x")
        released(course).write_text(answered)
        said = release.release()
        assert said[0] == f"notebooks/98_tiny: your answers are kept in {name}"
        assert released(course).with_name(name).read_text() == answered
        assert release.stale() == []


def test_an_old_notebook_without_answers_is_replaced(course):
    release.release()
    tiny.lesson(course / "solutions", hidden="assert twice(0) == 0")
    path = course / "solutions" / "98_tiny" / "98_tiny.ipynb"
    path.write_text(path.read_text().replace("Tiny", "Tinier"))
    release.release()
    assert "Tinier" in released(course).read_text()
    assert sorted(p.name for p in released(course).parent.iterdir()) == ["98_tiny.ipynb", "AGENTS.md"]


def test_a_notebook_without_solution_goes_unless_it_holds_answers(course):
    release.release()
    (course / "notebooks" / "97_gone").mkdir()
    (course / "notebooks" / "97_gone" / "97_gone.ipynb").write_bytes(released(course).read_bytes())
    assert release.stale() == ["notebooks/97_gone has no solution"]
    assert release.release() == ["notebooks/97_gone removed: it has no solution any more"]
    (course / "notebooks" / "96_mine").mkdir()
    (course / "notebooks" / "96_mine" / "96_mine.ipynb").write_text("not even a notebook")
    assert "stays" in release.release()[0]
    assert (course / "notebooks" / "96_mine" / "96_mine.ipynb").exists()


def test_mistakes_are_told_in_one_line(course, capsys):
    assert main(["release", "99_nothing"]) == 2
    assert capsys.readouterr().err == "autograder: no lesson '99_nothing'; there are: 98_tiny\n"
    path = course / "solutions" / "98_tiny" / "98_tiny.ipynb"
    good = path.read_text()
    path.write_text(good.replace("### END SOLUTION", ""))
    assert main(["release"]) == 2
    assert capsys.readouterr().err.startswith("autograder: nbgrader refuses solutions/98_tiny: No end solution")
    path.write_text("{")
    assert main(["release"]) == 2
    error = capsys.readouterr().err
    assert "98_tiny" in error and "JSON" in error and error.count("\n") == 1
    assert not released(course).exists()
