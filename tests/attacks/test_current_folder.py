"""Commands called in a folder with a student's files: none runs what lies there under the name of a module."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.grade import jail
from autograder.lesson import notebook
from tests.helpers.toy_course import LESSON, WRONG_SQUARE, Toy, submission

LEAK = "import sys\nwith open({leaks!r}, 'a') as file:\n    print(__name__, sys.orig_argv, file=file)\n"
#: Without a Python to start a server of its own, it depends on the shared one.
SHARE = """
import sys
import ranks
from autograder.lesson.shared_server import share_server
with share_server():
    sys.executable = "/bin/false"
    assert list(ranks.run(lambda rank, world_size: rank, world_size=2, echo=False)) == [0, 1]
"""


class Trap:
    """A folder with a module of every name that is installed, each of which says who has imported it."""

    def __init__(self, folder: Path, but: set[str]):
        self.folder, self.leaks = folder, folder.parent / "leaks"
        names = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions()}
        names |= {"autograder", "ranks", "machines", "planner", "sitecustomize", "usercustomize", "nbgrader_config"}
        for name in sorted(names - but):
            (folder / f"{Path(name).name}.py").write_text(LEAK.format(leaks=str(self.leaks)))

    def sprung(self, *command: object) -> str:
        """What has imported something from the folder while a command ran there; its output if it failed."""
        done = subprocess.run([*map(str, command)], cwd=self.folder, capture_output=True, text=True, timeout=3600)
        found = self.leaks.read_text() if self.leaks.exists() else ""
        return found or (done.stderr if done.returncode else "")


@pytest.mark.slow
def test_no_command_takes_a_module_from_the_folder_of_a_submission(tmp_path):
    toy = Toy(tmp_path / "course")
    toy.hand_in("ada", submission(ex2=WRONG_SQUARE))
    (tmp_path / "bin").mkdir()  # as in the environment: the command beside a Python, which is this one
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    command = shutil.copy(notebook.ROOT / ".ci" / "autograder", tmp_path / "bin")
    trap = Trap(toy.root / "submitted" / "ada" / LESSON, but=set())
    (tmp_path / "names.csv").write_text("name,login\nBo Li,bo\n")
    download = tmp_path / "download"
    (download / "Bo Li_1_assignsubmission_file_").mkdir(parents=True)
    toy.hand_in("bo", submission()).rename(download / "Bo Li_1_assignsubmission_file_" / f"{LESSON}.ipynb")
    course = "--course", toy.root
    jailed = ["--no-jail"] if jail.missing() else []
    for line in (
        ["import", download, "07", "--names", tmp_path / "names.csv", *course],
        ["grade", "--jobs", "1", *jailed, *course],
        ["report", *course],
        ["regrade", "--jobs", "1", *jailed, *course],
        ["answers", tmp_path / "answers", *course],
        ["retry", "ada", "07", "07-ex2", *course],
        ["release", "--check", "02"],
        ["where", "02-ex1"],
    ):
        assert not trap.sprung(command, *line), line[0]
    assert toy.points("ada") == {"ex1": 1.0, "ex2": 0.0, "ex3": 3.0} and toy.points("bo")["ex2"] == 2.0


def test_run_as_a_module_it_takes_none_either_once_it_runs(tmp_path):
    """What `python -m` itself imports first cannot be helped: the instructor's page says so."""
    code = "import runpy, sys; print(*{name.split('.')[0] for name in sys.modules})"
    first = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    (tmp_path / "here").mkdir()
    trap = Trap(tmp_path / "here", but={*first.split(), "autograder"})
    assert trap.sprung(sys.executable, "-m", "json.tool", "--help"), "the trap is set"
    trap.leaks.unlink()
    assert not trap.sprung(sys.executable, "-m", "autograder", "where", "02-ex1")


@pytest.mark.slow
def test_the_process_from_which_ranks_are_forked_takes_none(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "share.py").write_text(SHARE)
    trap = Trap(tmp_path / "here", but=set())
    assert not trap.sprung(sys.executable, "-P", tmp_path / "share.py")
