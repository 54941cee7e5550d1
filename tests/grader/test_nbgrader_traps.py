"""Into which traps of nbgrader a class that is graded with our steps does not fall."""

import copy
import os

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell
from nbgrader.api import Gradebook
from nbgrader.plugins import CsvExportPlugin
from traitlets.config import PyFileConfigLoader

from autograder.grade.nbgrader import library
from autograder.grade.nbgrader.restore import SourceCell, restore
from autograder.grade.nbgrader.scoring import SaveScores
from autograder.grade.running import clock
from autograder.lesson import notebook
from tests.helpers.toy_course import LESSON, RIGHT, WRONG_SQUARE, Toy, at, cell, released, submission

FULL = {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}
WITHOUT_EX2 = FULL | {"ex2": 0.0}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return Toy(tmp_path_factory.mktemp("ours"), timeout=2)


def test_nbgraders_export_leaves_our_table_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grades.csv").write_text("ours")
    ours = library.settings()  # which also puts what makes a gradebook on the PATH
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}", "toy") as gradebook:
        CsvExportPlugin(config=ours).export(gradebook)
    assert (tmp_path / "grades.csv").read_text() == "ours" and (tmp_path / "nbgrader-grades.csv").is_file()


# --- the mark itself ------------------------------------------------------------------------------------

NOISY = (
    "import sys, warnings\n\ndef double(x):\n    warnings.warn('careful')\n"
    "    print('noise', file=sys.stderr)\n    return 2 * x\n"
)
DISPLAYS = "import sys\n\ndef square(x):\n    sys.displayhook(2)\n    return 0\n"


def test_nbgrader_in_a_course_of_its_own_takes_our_settings_or_stops(tmp_path, monkeypatch):
    def loaded():
        return PyFileConfigLoader(library.CONFIG, path=str(tmp_path)).load_config()

    library.write_settings(tmp_path, "../solutions")
    config = loaded()
    assert config.Autograde.autograde_preprocessors[-1] is SaveScores
    assert (config.CourseDirectory.root, config.CourseDirectory.source_directory) == (str(tmp_path), "../solutions")
    monkeypatch.setattr(notebook, "ROOT", tmp_path / "moved")
    library.write_settings(tmp_path, "../solutions")
    with pytest.raises(SystemExit, match="activate the repository's environment, or run `autograder grade` again"):
        loaded()
    (tmp_path / library.CONFIG).write_text("c = 1")
    library.write_settings(tmp_path, "../solutions")
    assert (tmp_path / library.CONFIG).read_text() == "c = 1"


def test_a_right_answer_that_writes_to_stderr_keeps_its_marks(toy):
    assert toy.grade(submission(ex1=NOISY), "noisy") == FULL


def test_a_value_displayed_before_the_error_earns_nothing(toy):
    assert toy.grade(submission(ex2=DISPLAYS), "displays") == WITHOUT_EX2
    assert toy.comment("ex2", "displays") == "square(3) is 0: think of square"


# --- cells that were moved, changed, lost ---------------------------------------------------------------

ANSWER, TEST = "07-ex2-square", "07-ex2-square-test"


def insert_twin(nb, original):
    twin = copy.deepcopy(original)
    twin.id = "twin"
    nb.cells.insert(at(nb, original.id) + 1, twin)


def turn_into_text(nb, name):
    old = cell(nb, name)
    nb.cells[at(nb, name)] = new_markdown_cell(old.source, id=old.id, metadata=old.metadata)


def merge_into_the_test(nb):
    cell(nb, TEST).source = "\n\n".join(cell(nb, name).source for name in (ANSWER, TEST))
    del nb.cells[at(nb, ANSWER)]


def remove_metadata(nb):
    for one in nb.cells:
        one.metadata = {}


def add_unknown_metadata(nb):
    nb.cells[0].metadata = {"nbgrader": {"grade_id": "no-such-cell", "grade": True, "points": 9}}
    nb.cells[1].metadata = {"nbgrader": "not a dictionary"}


JULIA = {"kernelspec": {"name": "julia-1.9", "language": "julia"}, "language_info": {"name": "julia"}}
#: What is done to a notebook; what is said of it.
TAMPERINGS = {
    "deleted-test": (lambda nb: nb.cells.pop(at(nb, TEST)), "The test cell was missing and has been put back."),
    "doubled-test": (
        lambda nb: insert_twin(nb, cell(nb, TEST)),
        "The test cell was there several times; it was run once.",
    ),
    "doubled-stub": (
        lambda nb: insert_twin(nb, cell(released(), ANSWER)),
        "The answer cell was there several times; the last one that was written counts.",
    ),
    "retyped-test": (
        lambda nb: turn_into_text(nb, TEST),
        "The test cell had been turned into text; the original was run.",
    ),
    "retyped-answer": (
        lambda nb: turn_into_text(nb, ANSWER),
        "The answer cell had been turned into text; it was run as code.",
    ),
    "edited-test": (
        lambda nb: cell(nb, TEST).update(source="pass"),
        "The test cell had been changed; the original was run.",
    ),
    "moved-test": (
        lambda nb: nb.cells.insert(1, nb.cells.pop(at(nb, TEST))),
        "The test cell came before the answer; it was run after the answer.",
    ),
    "merged-into-the-test": (merge_into_the_test, "The test cell was missing and has been put back."),
    "other-points": (lambda nb: cell(nb, TEST).metadata.nbgrader.update(points=50), ""),
    "no-longer-graded": (lambda nb: cell(nb, TEST).metadata.nbgrader.update(grade=False), ""),
    "without-metadata": (remove_metadata, ""),
    "unknown-metadata": (add_unknown_metadata, ""),
    "other-kernel": (lambda nb: nb.update(metadata=JULIA), ""),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_tampered_notebook_gets_the_marks_of_its_answers(toy, name):
    tamper, said = TAMPERINGS[name]
    right, wrong = submission(), submission(ex2=WRONG_SQUARE)
    tamper(right)
    tamper(wrong)
    assert toy.grade(wrong, name) == WITHOUT_EX2
    assert toy.comment("ex2", name) == f"{said} square(3) is 0: think of square".strip()
    assert toy.grade(right, name) == FULL
    assert toy.comment("ex2", name) == said


def test_the_notebook_of_another_lesson_is_told(toy):
    nb = submission()
    for one in nb.cells:
        one.id, one.source = one.id.replace("07-", "05-"), one.source.replace("def ", "def other_")
        if "nbgrader" in one.metadata:
            one.metadata.nbgrader.grade_id = one.id
    assert toy.grade(nb, "other") == dict.fromkeys(FULL, 0.0)
    assert "This is the notebook of lesson 05, not of 07: hand in the right one." in toy.page("other")


def test_a_missing_answer_cell_costs_its_exercise_only(toy):
    nb = submission()
    del nb.cells[at(nb, "07-ex2-square")]
    assert toy.grade(nb, "no-answer") == WITHOUT_EX2
    assert toy.comment("ex2", "no-answer").startswith("The answer cell was missing. The test stopped with NameError")
    nb.cells.insert(2, new_code_cell(RIGHT["07-ex2-square"]))  # written somewhere else
    assert toy.grade(nb, "no-answer") == FULL


def test_the_students_own_cells_stay(toy):
    nb = submission(ex2="def square(x):\n    return helper(x, x)\n")
    nb.cells.insert(2, new_code_cell("def helper(a, b):\n    return a * b\n"))
    assert toy.grade(nb, "helper") == FULL


def test_restored_cells_are_valid_whatever_comes():
    sources = [SourceCell("07-ex1-a", "stub", False), SourceCell("07-ex1-a-test", "assert a", True, 3.0)]
    assert [c.id for c in restore([], sources).cells] == ["07-ex1-a", "07-ex1-a-test"]
    many = [new_code_cell("x", id="07-ex1-a-test") for _ in range(3)] + [new_code_cell("y", id="07-ex1-a")] * 2
    ids = [c.id for c in restore(many, sources).cells]
    assert len(set(ids)) == len(ids)
    assert ids.index("07-ex1-a") + 1 == ids.index("07-ex1-a-test")


# --- answers that do not run, and cells that kill -------------------------------------------------------

DIED = "Python itself ended during the test"
STOPPED = "The test did not end in the time allowed"
FATAL = {
    "syntax": (
        "def square(x)\n    return x",
        "Your answer cell stopped with SyntaxError: expected ':' (line 1).",
    ),
    "sys-exit": ("import sys\n\ndef square(x):\n    sys.exit(0)\n", "The test stopped with SystemExit"),
    "exit-in-the-answer": ("import os\n\ndef square(x):\n    return x * x\n\nos._exit(1)", "Python itself ended"),
    "exit-in-the-function": ("import os\n\ndef square(x):\n    os._exit(1)", DIED),
    "crash": ("import ctypes\n\ndef square(x):\n    ctypes.string_at(0)", DIED),
    "no-memory": ("def square(x):\n    return bytearray(10**15)", "The test stopped with MemoryError"),
    "loop-in-the-answer": ("def square(x):\n    return x * x\n\nwhile True:\n    pass", "Your answer cell did not end"),
    "loop-in-the-function": ("def square(x):\n    while True:\n        pass", STOPPED),
    "loop-that-cannot-be-interrupted": (
        "def square(x):\n    while True:\n        try:\n            while True:\n                pass\n"
        "        except BaseException:\n            pass",
        STOPPED,
    ),
    "loop-that-prints": ("def square(x):\n    while True:\n        print('x' * 1000)", STOPPED),
}


@pytest.mark.parametrize("name", FATAL)
def test_a_fatal_answer_costs_its_exercise_only_and_says_why(toy, name):
    source, why = FATAL[name]
    started = clock.now()
    assert toy.grade(submission(ex2=source), name) == WITHOUT_EX2
    assert toy.comment("ex2", name).startswith(why)
    assert clock.now() - started < 40, "two tries"


@pytest.mark.parametrize(
    ("later", "points"),
    [(submission(ex2=FATAL["exit-in-the-function"][0]), WITHOUT_EX2), ("no notebook", dict.fromkeys(FULL, 0.0))],
    ids=["the kernel dies", "no notebook"],
)
def test_no_earlier_score_stays(toy, later, points):
    assert toy.grade(submission(), "stale") == FULL
    assert toy.grade(later, "stale") == points


def test_a_killer_between_exercises_costs_nobody_else(toy):
    nb = submission()
    nb.cells.insert(at(nb, "07-ex1-double-test") + 1, new_code_cell("import os; os._exit(3)"))
    assert toy.grade(nb, "between") == FULL


@pytest.mark.parametrize("asleep", ["def square(x):\n    time.sleep(0.4)\n    return x * x", "time.sleep(1)"])
def test_what_kills_a_moment_later_is_left_out(toy, asleep):
    """Whichever cell runs when the kernel ends: one of its own, or the test of an exercise."""
    later = "import os, threading\nthreading.Timer(0.3, os._exit, [1]).start()"
    nb = submission(ex2=f"def square(x):\n    return x * x\n\n{asleep}")
    nb.cells.insert(at(nb, "07-ex1-double-test") + 1, new_code_cell("import time\ncount = 1"))
    nb.cells.insert(at(nb, "07-ex1-double-test") + 2, new_code_cell(later))
    nb.cells.insert(at(nb, "07-ex1-double-test") + 3, new_code_cell("count += 1"))
    assert toy.grade(nb, "later") == FULL


def test_a_fork_changes_nothing_and_leaves_no_process(toy):
    mark = f"fork-{os.getpid()}"
    source = f"import os\n\ndef square(x):\n    os.fork()\n    return x * x\n\nos.environ['MARK'] = {mark!r}"
    assert toy.grade(submission(ex2=source), "forks") == FULL
    source = (
        "import subprocess, sys\n\ndef square(x):\n    return x * x\n\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {mark!r}])"
    )
    assert toy.grade(submission(ex2=source), "forks") == FULL
    assert not processes_with(mark)
    assert toy.grade(submission(ex2=f"{source}\nimport os\nos._exit(1)"), "forks") == WITHOUT_EX2  # leaves an orphan
    assert not processes_with(mark)


def processes_with(mark):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file, open(f"/proc/{pid}/stat") as stat:
                if mark.encode() in file.read() and stat.read().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(pid)
        except OSError:
            continue
    return found


# --- files that are no notebooks ------------------------------------------------------------------------

#: The other kinds are in `test_reading.UNREADABLE`.
BROKEN = {
    "not-json": ("this is no notebook", "The file is not a Jupyter notebook"),
    "missing": (None, f"There is no {LESSON}.ipynb, and the folder holds no other notebook"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gets_zero_and_the_reason(toy, name):
    content, why = BROKEN[name]
    assert toy.grade(content, name) == dict.fromkeys(FULL, 0.0)
    assert all(toy.comment(exercise, name).startswith(why) for exercise in FULL)
    page = toy.page(name)
    assert why in page and "NameError" not in page and page.count("Not run: the notebook could not be read") == 3


def test_the_only_notebook_is_graded_under_another_name_and_several_are_named(toy):
    path = toy.hand_in("renamed", submission())
    path.rename(path.with_name("my solution.ipynb"))
    assert toy.grade(None, "renamed") == FULL
    assert "my solution.ipynb was graded, since there is no 07_toy.ipynb" in toy.page("renamed")
    path.with_name("07_toy (2).ipynb").write_bytes(path.with_name("my solution.ipynb").read_bytes())
    assert toy.grade(None, "renamed") == dict.fromkeys(FULL, 0.0)
    assert "found 07_toy (2).ipynb, my solution.ipynb" in toy.comment("ex1", "renamed")


ODD = """
from IPython.display import display
display({"text/plain": 5, "image/png": [1], 7: "x", "application/json": {"a": float("nan")}}, raw=True)
print("half \\ud800 a character, a bell \\a, a zero \\0")
def square(x):
    raise ValueError("half \\ud800 a character \\0")
"""


def test_output_that_no_file_can_hold_costs_nothing_else(toy):
    assert toy.grade(submission(ex2=ODD), "odd") == WITHOUT_EX2
    assert toy.comment("ex2", "odd").startswith("The test stopped with")
    assert toy.grade(submission(ex2=RIGHT["07-ex2-square"] + "# \ud800 \0"), "odd") == FULL


def test_a_student_whose_name_is_a_pattern_is_one_student(toy):
    toy.hand_in("a", submission(ex2=WRONG_SQUARE))
    assert toy.grade(submission(), "[ab]") == FULL
