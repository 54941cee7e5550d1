"""Every solution notebook runs from its first cell to its last in a fresh kernel; what stops one is told in a line."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder.__main__ import main
from autograder.lesson import executing, keys, notebook, run_solutions
from autograder.lesson.shared_server import share_server
from tests.helpers import tiny_lesson as tiny

WITH_RANKS = [
    lesson for lesson in notebook.lessons() if "WORLD_SIZE" in run_solutions.parameters_of(notebook.read(lesson))
]
#: Each solution's other numbers of ranks, without the test cells, which choose their own: three for all, which divides
#: hardly anything, and two where a ring and its neighbors are the subject.
OTHER_WORLD_SIZES = [*((lesson, 3) for lesson in WITH_RANKS), ("01_collectives", 2), ("05_ddp", 2)]
#: Seconds that a solution notebook may take. With two quiet cores of its own the longest takes 90; here other tests run
#: next to it, and ranks that wait for one another slow down by more than their share of the cores.
MOST_SECONDS = 4 * 90


def code_of(path):
    """The code cells of an executed notebook that did not take too long."""
    nb = nbformat.read(path, as_version=4)
    assert nb.metadata.papermill.duration < MOST_SECONDS
    return [cell for cell in nb.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def shared():
    """One process that has imported torch, for all notebooks of this file."""
    with share_server():
        yield


@pytest.mark.slow
@pytest.mark.apart
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("lesson", notebook.lessons())
def test_the_solution_runs(lesson):
    if not run_solutions.is_current(lesson):  # with this code it has run well
        try:
            run_solutions.run(lesson, progress=False)
        except run_solutions.NotebookFailedError as error:
            pytest.fail(str(error), pytrace=False)  # one line: papermill's traceback is long enough to be truncated
    code = code_of(run_solutions.EXECUTED / f"{lesson}.ipynb")
    assert all(cell.execution_count for cell in code if cell.source)
    streams = [(cell.id, out.text) for cell in code for out in cell.outputs if out.get("name") == "stderr"]
    assert not streams, "a solution notebook writes to stderr"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.apart
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(("lesson", "world_size"), OTHER_WORLD_SIZES)
def test_the_solution_runs_on_another_number_of_ranks(lesson, world_size, tmp_path):
    done = run_solutions.run(lesson, {"WORLD_SIZE": world_size}, progress=False, folder=tmp_path, tests=False)
    assert code_of(done)
    assert f"WORLD_SIZE = {world_size}" in done.read_text()


def test_of_several_notebooks_each_has_its_own_outcome(tmp_path):
    missing = {"NO_SUCH": 1}
    outcomes = run_solutions.run_all([("03_step", missing), ("01_collectives", missing)], jobs=2, folder=tmp_path)
    assert [str(error).split(";")[0] for error in outcomes] == [
        "03_step has no parameter 'NO_SUCH'",
        "01_collectives has no parameter 'NO_SUCH'",
    ]


def run_in(folder, number):
    """Run a notebook that takes a while and says its number, in a folder that others run in; what it printed."""
    source, output = folder / f"{number}.ipynb", folder / f"{number}.out"
    nbformat.write(new_notebook(cells=[new_code_cell(f"import time; time.sleep(3); print({number})")]), source)
    executing.execute(source, output, folder)
    return nbformat.read(output, as_version=4).cells[0].outputs[0].text


def test_notebooks_that_run_in_one_folder_at_once_keep_to_their_kernels(tmp_path):
    """As the book's chapters do: with the sockets of both in that folder, one kernel got the other's requests."""
    told = dict(executing.at_once(run_in, [(tmp_path, 0), (tmp_path, 1)], 2, "", show=False))
    assert told == {0: "0\n", 1: "1\n"}


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one tiny lesson, whose executed copies go to a folder of its own."""
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    monkeypatch.setattr(run_solutions, "EXECUTED", tmp_path / "executed")
    monkeypatch.setattr(keys, "lesson_key", lambda lesson: notebook.solution_path(lesson).read_text())
    tiny.lesson(tmp_path / "solutions")
    return tmp_path


def test_what_has_not_changed_is_not_run_again(course, capsys):
    assert main(["run"]) == 0
    assert "unchanged" not in capsys.readouterr().out
    assert main(["run"]) == 0
    assert capsys.readouterr().out == "98_tiny: unchanged since it last ran\n"
    tiny.lesson(course / "solutions", hidden="assert twice(0) == 0")
    assert not run_solutions.is_current("98_tiny")


def test_a_run_without_tests_is_not_a_test(course, capsys):
    tiny.lesson(course / "solutions", hidden="assert False, 'tested'")
    executed = course / "executed" / "98_tiny.ipynb"
    assert main(["run", "--no-tests"]) == 0
    assert "tested" not in executed.read_text()
    assert run_solutions.is_current("98_tiny", tests=False) and not run_solutions.is_current("98_tiny")
    capsys.readouterr()
    assert main(["run", "--no-tests"]) == 0
    assert capsys.readouterr().out == "98_tiny: unchanged since it last ran\n"
    assert main(["run"]) == 1
    assert "tested" in capsys.readouterr().err


def test_parameters_reach_the_notebook_and_do_not_count_as_its_run(course):
    assert main(["run", "98_tiny", "-p", "WORLD_SIZE", "2"]) == 0
    cells = nbformat.read(course / "executed" / "98_tiny.ipynb", as_version=4).cells
    shown = next(cell for cell in cells if cell.id == "98-show")
    assert shown.outputs[0].text == "2\n"
    assert not run_solutions.is_current("98_tiny")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("doubled_value_of_the_input = 3 * x", "cell 98-ex1-twice-test: AssertionError"),
        ("raise ValueError('first line\\nsecond line')", "cell 98-ex1-twice-test: ValueError: first line;"),
        ("os._exit(1)", "cell 98-ex1-twice-test: the kernel died"),
    ],
)
def test_the_cell_that_fails_is_named(course, capsys, answer, told):
    assert main(["run"]) == 0
    tiny.lesson(course / "solutions", answer=answer)
    assert main(["run"]) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("autograder: solutions/98_tiny") and told in line
    assert (course / "executed" / "98_tiny.failed.ipynb").exists()
    assert not run_solutions.is_current("98_tiny")


def test_the_kernel_is_this_environments_own(course, monkeypatch):
    """A machine may have another kernel under the name python3, and tell Jupyter to look there first."""
    folder = course / "jupyter" / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text('{"argv": ["false"], "display_name": "Another", "language": "python"}')
    for variable in ("JUPYTER_PATH", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(variable, str(course / "jupyter"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    assert main(["run"]) == 0


def test_an_endless_cell_is_stopped(course, capsys, monkeypatch):
    monkeypatch.setattr(executing, "CELL_TIMEOUT", 2)
    tiny.lesson(course / "solutions", answer="while True: pass")
    assert main(["run"]) == 1
    assert "cell 98-ex1-twice-test: did not end within 2 s" in capsys.readouterr().err


def test_mistakes_are_told_in_one_line(course, capsys):
    assert main(["run", "99_nothing"]) == 2
    assert capsys.readouterr().err == "autograder: no lesson '99_nothing'; there are: 98_tiny\n"
    assert main(["run", "-p", "WORLD", "2"]) == 1
    assert capsys.readouterr().err == "autograder: 98_tiny has no parameter 'WORLD'; it has: SEED, WORLD_SIZE\n"
    notebook.solution_path("98_tiny").write_text("{")
    assert main(["run"]) == 1
    error = capsys.readouterr().err
    assert "solutions/98_tiny/98_tiny.ipynb is not a notebook" in error and error.count("\n") == 1
