"""A submission's setup cells, and cells that an editor has stripped of nbgrader's marks: no right answer pays for them.

The rows are named as in a trial of what Colab and Kaggle do to a notebook: saving it there can remove metadata and ids,
and students put what the site needs into the first cell.
"""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from autograder.grade import outcome
from autograder.grade.nbgrader import restore, setup_cells
from autograder.grade.nbgrader.reading import notebook_of, unreadable
from autograder.grade.nbgrader.restore import SourceCell, restored_notebook
from tests.helpers.toy_course import LESSON, WRONG_SQUARE, Toy, at, cell, lesson, released, submission

FULL = {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}
SETUP = "import math\nimport statistics\n\nTWO = 2"
#: Right answers that need both lines of the setup.
NEEDS_SETUP = {
    "ex1": "def double(x):\n    return TWO * x\n",
    "ex2": "def square(x):\n    return math.prod([x, x])\n",
    "ex3": "def half(x):\n    return statistics.mean([x, 0])\n",
}


def with_setup(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The toy lesson's notebook with a setup cell on which the answers build."""
    cell(nb, "07-imports").update(source=SETUP, metadata={"tags": ["setup"]})
    return nb


def handed_in(**answers: str) -> nbformat.NotebookNode:
    return with_setup(submission(**{**NEEDS_SETUP, **answers}))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    toy = Toy(tmp_path_factory.mktemp("setup"), timeout=60)
    toy.teach(with_setup)
    toy.course.prepare(LESSON)
    return toy


#: What students write into the setup cell; what the page says about it. (`pip install` would look for a network.)
CHANGED = {
    "l: drive in its middle": (
        "!pip --version\nfrom google.colab import drive\ndrive.mount('/content/drive')\n%cd /content\n" + SETUP,
        "Your setup cell stopped with ModuleNotFoundError: No module named &#39;google",
    ),
    "l2: pip": ("!pip --version\n" + SETUP, ""),
    "l3: cd": ("%cd /content\n" + SETUP, ""),
    "l4: pip as a magic": ("%pip --version\n" + SETUP, ""),
    "l5: chdir": ("import os\nos.chdir('/content')\n" + SETUP, "Your setup cell stopped with FileNotFoundError"),
    "l6: drive if it is there": (
        "try:\n    from google.colab import drive\nexcept ImportError:\n    pass\n" + SETUP,
        "",
    ),
    "l7: clone": ("!git clone -q nothing\n" + SETUP, ""),
    "l8: pip as a process": (
        "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', '--version'])\n" + SETUP,
        "",
    ),
    "a syntax error": ("import google.colab as\n" + SETUP, "Your setup cell stopped with SyntaxError"),
    "the kernel's end": ("import os\nos._exit(1)\n" + SETUP, "Python itself ended during your setup cell"),
    "no setup at all": ("pass", ""),
    "an empty cell": ("", ""),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_setup_cell_that_does_not_run_costs_no_right_answer(toy, name):
    nb = handed_in(ex2=WRONG_SQUARE)
    source, why = CHANGED[name]
    cell(nb, "07-imports").source = source
    assert toy.grade(nb) == FULL | {"ex2": 0.0}
    page = toy.page()
    assert "The lesson&#39;s own setup cell 07-imports ran before your cells, because it was changed or missing" in page
    assert why in page and ("our setup cell stopped" in page or "during your setup cell" in page) == bool(why)
    assert toy.comment("ex2") == "square(3) is 0: think of square"


def split(nb):
    """As with the editor's command: the upper half keeps the cell's id."""
    upper, lower = SETUP.split("\n\n")
    cell(nb, "07-imports").source = upper
    nb.cells.insert(at(nb, "07-imports") + 1, new_code_cell(lower))


def turn_into_text(nb):
    nb.cells[at(nb, "07-imports")] = new_markdown_cell(SETUP, id="07-imports")


LOST = {
    "deleted": lambda nb: nb.cells.pop(at(nb, "07-imports")),
    "split": split,
    "turned into text": turn_into_text,
    "below the answers": lambda nb: nb.cells.append(nb.cells.pop(at(nb, "07-imports"))),
}


@pytest.mark.parametrize("name", LOST)
def test_a_setup_cell_that_is_lost_costs_no_right_answer(toy, name):
    nb = handed_in()
    LOST[name](nb)
    assert toy.grade(nb) == FULL
    assert "own setup cell 07-imports ran before your cells" in toy.page()


def test_a_setup_cell_as_it_was_runs_once(toy):
    nb = handed_in()
    nb.cells.insert(0, new_code_cell("%cd /content"))  # k: in a cell of its own
    assert toy.grade(nb) == FULL
    assert "own setup cell" not in toy.page() and toy.page().count('"nn">statistics<') == 1


def test_what_a_student_changed_in_the_setup_counts(toy):
    nb = handed_in()
    cell(nb, "07-imports").source = SETUP.replace("TWO = 2", "TWO = 3")
    assert toy.grade(nb) == FULL | {"ex1": 0.0}


def test_each_setup_cell_comes_back_where_the_lesson_has_it():
    ours = with_setup(lesson())
    given = new_code_cell("class Given: pass", id="07-given", metadata={"tags": ["setup"]})
    ours.cells.insert(at(ours, "07-ex2-square-text"), given)
    theirs = released()
    del theirs.cells[at(theirs, "07-imports")]
    sources = [
        SourceCell(one.id, one.source, one.metadata.nbgrader.grade) for one in ours.cells if "nbgrader" in one.metadata
    ]
    for cells in (theirs.cells, theirs.cells[::-1], []):
        restored = restored_notebook(notebook_of(cells, outcome.NotebookOutcome()), sources, ours).cells
        names = [one.id for one in restored]
        assert len(set(names)) == len(names)
        assert names.index("07-imports") < min(names.index(source.name) for source in sources)
        assert names.index("07-given") < min(names.index(name) for name in ("07-ex2-square", "07-ex3-half"))
    assert [one.id for one in restored_notebook(unreadable("not a notebook"), sources, ours).cells] == [
        source.name for source in sources
    ]
    assert setup_cells.remarks(restored) == [
        "The lesson's own setup cells 07-imports, 07-given ran before your cells, "
        "because they were changed or missing in your notebook."
    ]


def test_an_earlier_version_of_the_lesson_is_named_as_such(tmp_path):
    toy = Toy(tmp_path)

    def remarks(change=lambda nb: None):
        nb = submission()
        change(nb)
        toy.hand_in("ada", nb)
        ran = toy.course.task("ada", LESSON).nb
        return outcome.of_notebook(ran).remarks, outcome.of_metadata(cell(ran, "07-ex1-double-test")).notes

    def publish(change):
        toy.teach(change)
        toy.course.prepare(LESSON)

    def other_test(nb):
        cell(nb, "07-ex1-double-test").source = "assert double(2) == 4"

    def without_the_third(nb):
        nb.cells = [one for one in nb.cells if "ex3" not in one.id]

    changed = "The test cell had been changed; the original was run."
    assert remarks() == ([], []) and remarks(other_test) == ([], [changed])
    publish(without_the_third)
    publish(other_test)
    assert remarks() == ([restore.OLDER], [restore.EARLIER]) and remarks(other_test) == ([], [])
    assert remarks(lambda nb: cell(nb, "07-ex1-double-test").update(source="assert True")) == ([], [changed])
    for change in (without_the_third, lambda nb: None):
        with toy.course.writing() as (record, _):
            record.at(LESSON).earlier.clear()
        publish(change)
    assert remarks(without_the_third)[0] == [restore.OLDER] and remarks()[0] == []


#: What stays of a cell's metadata, and the format's minor version. Only Colab's older format keeps ids, elsewhere.
STRIPPED = {
    "d: without metadata": (lambda one: {"id": one.id, "colab": {}}, 0),
    "e: without ids": (lambda one: {"_uuid": "0", **one.metadata}, 4),
    "f: without both": (lambda one: {"_uuid": "0", "trusted": True}, 4),
}


def strip(nb, name="f: without both"):
    keep, nb.nbformat_minor = STRIPPED[name]
    for one in nb.cells:
        one.metadata = keep(one)
        one.pop("id")


@pytest.mark.parametrize("name", STRIPPED)
def test_an_answer_that_lost_its_marks_is_found_and_nothing_is_called_missing(toy, name):
    nb = handed_in(ex2=WRONG_SQUARE, ex3=None)
    strip(nb, name)
    assert toy.grade(nb) == {"ex1": 1.0, "ex2": 0.0, "ex3": 0.0}
    assert [toy.comment(name) for name in FULL] == [
        "",
        "square(3) is 0: think of square",
        "This exercise is not written yet.",
    ]
    assert "missing" not in toy.page()


def test_an_answer_without_marks_that_does_not_run_is_still_the_answer(toy):
    nb = handed_in(ex2="%matplotlib inline\ndef square(x)\n    return x * x\n")
    strip(nb)
    assert toy.grade(nb) == FULL | {"ex2": 0.0}
    assert toy.comment("ex2").startswith("Your answer cell stopped with SyntaxError")


def test_an_answer_in_the_cell_of_another_one_is_not_missing(toy):
    nb = handed_in()
    cell(nb, "07-ex1-double").source += "\n\n" + NEEDS_SETUP["ex2"]
    del nb.cells[at(nb, "07-ex2-square")]
    assert toy.grade(nb) == FULL
    assert toy.comment("ex2") == ""


def test_of_several_cells_without_marks_the_written_one_counts(toy):
    nb = handed_in()
    stub = new_code_cell(cell(with_setup(released()), "07-ex2-square").source)
    nb.cells.insert(at(nb, "07-ex2-square") + 1, stub)
    strip(nb)
    assert toy.grade(nb) == FULL
