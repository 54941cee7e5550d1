"""Marks by property: what each is worth, what a wrong answer keeps, what the page says, what is refused."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder.answers import wrong
from autograder.grading import jail, run_cells
from autograder.grading.course import Course
from autograder.grading.kernels import LocalKernel
from autograder.insight import lms, marks
from autograder.lessons import names, nbgrader_api, notebook, properties
from tests.helpers.formgrader_server import environment

LESSON = "03_step"
MEAN, EMA = "03-ex2-all-reduce-mean", "03-ex4-ema-update"
IMPORT = "from autograder.checks import step\n"


def graded_cell(source: str, points: float = 4, **weights) -> nbformat.NotebookNode:
    """A test cell with these weights."""
    cell = new_code_cell(source, id="09-ex1-a-test", metadata={"nbgrader": {"grade": True, "points": points}})
    if weights:
        cell.metadata["properties"] = weights
    return cell


# --- what a test cell is made of ------------------------------------------------------------------------


def test_the_core_comes_first_and_the_visible_part_last():
    source = f"{IMPORT}step.small(f)\nstep.large(\n    f\n)\nstep.joined(f)\nassert f(1) == 1"
    core, small, visible = properties.of_test(graded_cell(source, small=1, large=3, joined="core"))
    assert (core.name, core.points, list(core.checks)) == ("large", 3.0, ["large", "joined"])
    assert core.checks["joined"].split() == [*IMPORT.split(), "step.joined(f)"]
    assert core.source == f"{IMPORT}\nstep.large(\n    f\n)\nstep.joined(f)\n"
    assert (small.name, small.points, small.source.strip()) == ("small", 1.0, f"{IMPORT}step.small(f)")
    assert small.source.split("\n")[1] == "step.small(f)", "line numbers stay"
    assert (visible.name, visible.points) == (properties.VISIBLE, 0.0)
    assert visible.source.split("\n")[6:] == ["assert f(1) == 1"]


def test_a_cell_without_a_visible_part_has_none():
    source = f'"""What it tests."""\n{IMPORT}import numpy as np\nstep.one(f)\nstep.two(f)'
    assert [one.name for one in properties.of_test(graded_cell(source, one=3, two=1))] == ["one", "two"]


def test_of_two_equal_properties_the_first_is_the_core():
    found = properties.of_test(graded_cell(f"{IMPORT}step.one(f)\nstep.two(f)", two=2, one=2))
    assert [one.name for one in found] == ["one", "two"]


def test_a_cell_with_one_check_or_none_needs_no_weights():
    (only,) = properties.of_test(graded_cell(f"{IMPORT}step.one(f)"))
    assert (only.name, only.points) == ("one", 4.0)
    only, visible = properties.of_test(graded_cell(f"assert f(1) == 1\n{IMPORT}step.one(f)"))
    assert (only.name, only.points, visible.name, visible.points) == ("one", 4.0, properties.VISIBLE, 0.0)
    assert "assert" not in only.source, "a check is tried first: it finds the hint"
    (whole,) = properties.of_test(graded_cell("assert True"))
    assert (whole.name, whole.points, whole.source) == ("", 4.0, "assert True")


def test_without_the_core_nothing_counts():
    assert properties.earned([("a", 2, True), ("b", 0.5, True), ("c", 0.5, False)]) == 2.5
    assert properties.earned([("a", 2, False), ("b", 0.5, True), ("c", 1.5, True)]) == 0.0
    assert properties.earned([]) == 0.0


def test_the_visible_part_costs_all_points_only_where_nothing_else_explains_it():
    visible = (properties.VISIBLE, 0.0, False)
    assert properties.earned([("a", 2, True), ("b", 0.5, True), visible]) == 0.0
    assert properties.earned([("a", 2, True), ("b", 0.5, False), visible]) == 2.0
    assert properties.earned([(properties.VISIBLE, 2, True)]) == 2.0
    assert properties.earned([(properties.VISIBLE, 2, False)]) == 0.0


TWO = f"{IMPORT}step.one(f)\nstep.two(f)"
#: source, weights → what is said.
REFUSED = {
    "too little": (TWO, {"one": 2, "two": 1}, "the weights add up to 3, but the exercise has 4 points"),
    "too much": (TWO, {"one": 4, "two": 0.25}, "the weights add up to 4.25, but the exercise has 4 points"),
    "no weight": (TWO, {"one": 4}, "the property two has no weight"),
    "no weights": (TWO, {}, "the property one has no weight"),
    "not called": (TWO, {"one": 2, "two": 1, "three": 1}, "there is a weight for three, which the cell does not call"),
    "small core": (
        f"{TWO}\nstep.three(f)",
        {"one": 1.5, "two": 1.5, "three": 1},
        "the core, one, has 1.5 of 4 points: give it at least half",
    ),
    "nothing": (TWO, {"one": 4, "two": 0}, "the weight of two is 0, not a number above 0 or 'core'"),
    "a text": (TWO, {"one": 4, "two": "all"}, "the weight of two is 'all', not a number above 0 or 'core'"),
    "core alone": (TWO, {"one": "core", "two": "core"}, "the weights add up to 0, but the exercise has 4 points"),
    "two on a line": (f"{IMPORT}step.one(f); x = 1", {"one": 4}, "one is not called on a line of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_weights_that_do_not_fit_are_refused_in_one_line(name):
    source, weights, says = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(f"09-ex1-a-test: {says}")) as caught:
        properties.of_test(graded_cell(source, **weights))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_every_lesson_says_what_its_properties_are_worth(lesson):
    for cell in notebook.read(lesson).cells:
        if notebook.nbgrader_role(cell) == "grade":
            assert cell.metadata["properties"], cell.id
            found = properties.of_test(cell)
            assert sum(one.points for one in found) == cell.metadata.nbgrader.points, cell.id
            assert {one.points % 0.25 for one in found} == {0.0}, f"{cell.id}: quarters of a point"


# --- a class that is graded -----------------------------------------------------------------------------


def lesson(*dropped: str) -> nbformat.NotebookNode:
    """Exercises 2 and 4 of lesson 03. The second, here, builds on the first."""
    kept = ("03-imports", MEAN, f"{MEAN}-test", EMA, f"{EMA}-test")
    nb = new_notebook(
        cells=[cell for cell in notebook.read(LESSON).cells if cell.id in kept and cell.id not in dropped]
    )
    for cell in nb.cells:
        if cell.id == EMA:
            cell.source = cell.source.replace(
                "return decay * ema + (1 - decay) * w", "return 2 * all_reduce_mean([decay * ema, (1 - decay) * w])"
            )
    return nb


def write(root, nb) -> None:
    folder = root / "solutions" / LESSON
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, folder / f"{LESSON}.ipynb")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    write(root, lesson())
    shutil.copy(notebook.ROOT / nbgrader_api.CONFIG, root / nbgrader_api.CONFIG)
    made = Course(root, 20, not jail.missing())
    made.prepare(LESSON)
    return made


#: Answers to exercise 2, by what is wrong with them.
RIGHT = "    return np.mean(np.asarray(worker_grads, dtype=np.float64), axis=0)"
MEANS = {
    "right": RIGHT,
    "in their own dtype": "    return np.mean(worker_grads, axis=0)",
    "changes a list": "    got = np.mean(np.asarray(worker_grads, dtype=np.float64), axis=0)\n"
    "    if isinstance(worker_grads, list):\n        worker_grads[0] += 1\n    return got",
    "wrong": "    total = np.sum(np.asarray(worker_grads, dtype=np.float64), axis=0)\n"
    "    return total / len(worker_grads) if total.shape == (4,) else total",  # this size is tried for changes
    "visible": f"    if np.shape(worker_grads) == (3, 2):\n        return np.zeros(2)\n{RIGHT}",
    "visible and its own dtype": "    if np.shape(worker_grads) == (3, 2):\n        return np.zeros(2)\n"
    "    return np.mean(worker_grads, axis=0)",
    "ends": f"    if np.asarray(worker_grads).dtype == np.float32:\n        import os\n        os._exit(0)\n{RIGHT}",
    "not written": '    raise NotImplementedError("write this function")',
}
OWN = "    ema, w = np.asarray(ema, dtype=np.float64), np.asarray(w, dtype=np.float64)\n    return "
EMAS = {
    "right": f"{OWN}decay * ema + (1 - decay) * w",
    "on the mean": f"{OWN}2 * all_reduce_mean([decay * ema, (1 - decay) * w])",
    "on the mean, in place": "    if decay == 0.0:\n        w += 1.0\n        w -= 1.0\n        ema += 1.0\n"
    f"{OWN}2 * all_reduce_mean([decay * ema, (1 - decay) * w])",
}


def hand_in(course, student: str, mean: str, ema: str = "right") -> None:
    sources = {
        MEAN: f"def all_reduce_mean(worker_grads):\n{MEANS[mean]}\n",
        EMA: f"def ema_update(ema, w, decay):\n{EMAS[ema]}\n",
    }
    nb = lesson()
    for cell in nb.cells:
        cell.source = sources.get(cell.id, cell.source)
        cell.metadata.pop("properties", None)
    folder = course.root / "submitted" / student / LESSON
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, folder / f"{LESSON}.ipynb")


def grade(course, student: str, mean: str, ema: str = "right") -> tuple[float, float]:
    """The points of the two exercises."""
    hand_in(course, student, mean, ema)
    assert not course.grade_one(student, LESSON)
    return points(course, student)


def points(course, student: str) -> tuple[float, float]:
    scores = course.scores()
    return scores[student, LESSON, MEAN][0], scores[student, LESSON, EMA][0]


def section(course, student: str, exercise: str = MEAN) -> str:
    page = (course.root / "feedback" / student / LESSON / f"{LESSON}.html").read_text()
    return html.unescape(page.split(f'<section id="{exercise}">')[1].split("</section>")[0])


SAYS = {
    "core": "The result is the mean over the workers, from one array and from a list of arrays.",
    "float64": "From float32 or integer gradients too, the mean is computed and returned in float64.",
    "alone": "No worker's gradient is changed, and the result shares no memory with one, even with one worker.",
    "visible": "The visible part of the test cell.",
}


def rows(text: str) -> dict[str, tuple[str, str]]:
    """sentence → (what became of it, its points), of the table in an exercise's section."""
    found = re.findall(r"<td>([^<]*)</td><td>(.*?)</td><td class=\"number\">([^<]*)</td>", text)
    assert [says.endswith(" This is the core.") for _, says, _ in found] == [True, *[False] * (len(found) - 1)]
    return {says.removesuffix(" This is the core."): (result, worth) for result, says, worth in found}


#: The kind of answer → its points, and what became of the core, the dtype, the inputs and the visible part.
WORTH = {
    "right": (2.0, "passed", "passed", "passed", "passed"),
    "in their own dtype": (1.75, "passed", "failed", "passed", "passed"),
    "changes a list": (1.75, "passed", "passed", "failed", "passed"),
    "wrong": (0.0, "failed", "failed", "passed", "failed"),
    "visible": (0.0, "passed", "passed", "passed", "failed"),
    "visible and its own dtype": (1.75, "passed", "failed", "passed", "failed"),
    "ends": (1.5, "passed", "failed", "not tried", "not tried"),
    "not written": (0.0, "failed", "not tried", "not tried", "not tried"),
}


@pytest.mark.jail
@pytest.mark.parametrize("kind", WORTH)
def test_a_property_counts_by_itself(course, kind):
    score, *results = WORTH[kind]
    assert grade(course, "ada", kind) == (score, 2.0)
    text = section(course, "ada")
    table = rows(text)
    assert [table[SAYS[name]][0] for name in SAYS] == results
    assert [table[SAYS[name]][1] for name in SAYS] == ["1.5", "0.25", "0.25", "0"]
    assert f"{score:g} / 2" in text
    assert ("Only the visible part of the test fails." in text) == (kind == "visible")
    headings = re.findall("<h3>(.*?)</h3>", text)
    assert headings == [SAYS[name] for name, result in zip(SAYS, results, strict=True) if result == "failed"]


@pytest.mark.jail
def test_each_failure_has_its_own_message_case_and_seed(course):
    grade(course, "bob", "wrong")
    text = section(course, "bob")
    assert "N = 4, d = 3" in text and "float32 gradients" in text
    assert "Without the core of the exercise, the other properties earn no points." in text
    nb = nbformat.read(course.root / "autograded" / "bob" / LESSON / f"{LESSON}.ipynb", as_version=4)
    (test,) = [cell for cell in nb.cells if cell.id == f"{MEAN}-test"]
    assert [one.status for one in test.metadata.autograder.properties] == ["error", "error", "ok", "error"]
    assert [bool(one.get("seed")) for one in test.metadata.autograder.properties] == [True, True, False, False]


@pytest.mark.jail
def test_a_carried_exercise_is_marked_by_property(course):
    assert grade(course, "cyd", "wrong", "on the mean") == (0.0, 2.0)
    assert "it failed only because of exercise 2" in section(course, "cyd", EMA)
    score = grade(course, "dan", "wrong", "on the mean, in place")[1]
    text = section(course, "dan", EMA)
    assert score == 1.75 and "The rest failed only because of exercise 2. Fix that first." in text
    assert [result for result, _ in rows(text).values()] == ["right", "right", "failed", "right"]


@pytest.mark.thorough
@pytest.mark.jail
def test_all_front_doors_show_the_same_fraction(course):
    grade(course, "eve", "in their own dtype")
    hand_in(course, "fay", "in their own dtype")
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", "autograde", LESSON, "--student=fay", "--force"],
        cwd=course.root,
        env=environment(course.root),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    assert points(course, "eve") == points(course, "fay") == (1.75, 2.0)
    course.grade([LESSON], solutions=False)
    assert "eve,03_step,3.75,4,1.75,2\n" in (course.root / "grades.csv").read_text()
    found = marks.read(course)
    assert "3.75" in next(line for line in lms.canvas(found).splitlines() if "eve" in line)
    assert "3.75" in next(line for line in lms.moodle(found).splitlines() if "eve" in line)
    mark = next(one for one in found.submissions if one.student == "eve").marks[0]
    assert (mark.score, mark.lost) == (1.75, True) and "float32 gradients" in mark.comment


@pytest.mark.thorough
def test_without_a_jail_the_marks_are_the_same(course, tmp_path):
    write(tmp_path, lesson())
    other = Course(tmp_path, 20, jail=False)
    other.prepare(LESSON)
    assert grade(other, "ada", "in their own dtype") == (1.75, 2.0)
    assert grade(other, "bob", "ends") == (1.5, 2.0)


def test_without_a_jail_a_failure_is_the_same_record(tmp_path):
    """It is asked of the student's kernel, where the check ran, with the hints that were found there."""
    known = wrong.of_exercise(MEAN)[0]
    kernel = LocalKernel(str(tmp_path))
    kernel.start()
    try:
        setup = [cell.source for cell in lesson().cells if notebook.is_setup(cell) and cell.id != MEAN]
        assert [kernel.run(source, 60).status for source in (*setup, known.source)] == ["ok"] * (len(setup) + 1)
        calls = next(cell for cell in lesson().cells if cell.id == f"{MEAN}-test")
        core = properties.of_test(calls)[0]
        failure = run_cells.failure_of(kernel.run_test(core.source, 60))
        assert (failure["check"], failure["kind"]) == (core.name, "wrong") and "(case: " not in failure["message"]
        assert {"name": known.name, "text": known.hint} in failure["hints"] and failure["case"]
        assert kernel.run_test("1 / 0", 60).raised is None
        assert kernel.run_test(core.source.replace(core.name, "no_such_check"), 60).error[0] == "AttributeError"
    finally:
        kernel.stop()


def test_in_jupyterlab_the_cell_stops_at_the_first_failure():
    """A student who has the hidden tests, as in the solution, sees the first failure alone."""
    test = next(cell for cell in lesson().cells if cell.id == f"{MEAN}-test")
    space = notebook.functions(LESSON)
    space["all_reduce_mean"] = lambda worker_grads: [0.0]
    with pytest.raises(AssertionError, match="the mean gradient") as caught:
        exec(test.source, space)
    assert "float32" not in str(caught.value)


# --- what is refused at release -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mean_is_computed_in_float64": 0.5}, "the weights add up to 2.25, but the exercise has 2 points"),
        ({"mean_is_computed_in_float64": None}, "the property mean_is_computed_in_float64 has no weight"),
        ({"mean_is_right": 0.25}, "there is a weight for mean_is_right, which the cell does not call"),
    ],
)
def test_bad_weights_are_one_line_at_release(tmp_path, change, says):
    nb = lesson()
    (test,) = [cell for cell in nb.cells if cell.id == f"{MEAN}-test"]
    test.metadata["properties"].update(change)
    test.metadata["properties"] = {name: value for name, value in test.metadata["properties"].items() if value}
    write(tmp_path, nb)
    with pytest.raises(ValueError, match=re.escape(f"{MEAN}-test: {says}")) as caught:
        Course(tmp_path).prepare(LESSON)
    assert "\n" not in str(caught.value)


def test_an_exercise_that_builds_on_one_that_does_not_exist_is_one_line_at_release(tmp_path):
    write(tmp_path, lesson(MEAN, f"{MEAN}-test"))
    with pytest.raises(ValueError, match=f"{EMA} builds on all_reduce_mean, which no cell of the lesson defines"):
        Course(tmp_path).prepare(LESSON)


def test_names_that_cannot_be_known_are_not_looked_for():
    def cell(source, name="09-ex1-a", **role):
        return new_code_cell(source, id=name, metadata={"nbgrader": role})

    answer = cell("def f():\n    return missing + len(str(display))", solution=True)
    assert names.undefined_names(new_notebook(cells=[answer])) == [("09-ex1-a", "missing")]
    only_in_a_test = cell("missing = 1\nassert f()", "09-ex1-a-test", grade=True)
    assert names.undefined_names(new_notebook(cells=[answer, only_in_a_test])) == [("09-ex1-a", "missing")]
    for other in ("from math import *", "%matplotlib inline"):
        assert names.undefined_names(new_notebook(cells=[cell(other, "09-b"), answer])) == []


def test_a_check_inside_another_statement_is_one_line_at_release(tmp_path):
    nb = lesson()
    (test,) = [cell for cell in nb.cells if cell.id == f"{MEAN}-test"]
    call = "step.mean_leaves_its_inputs_alone(all_reduce_mean)"
    test.source = test.source.replace(call, f"if True:\n    {call}")
    test.metadata["properties"] = {"mean_is_over_the_workers": 1.75, "mean_is_computed_in_float64": 0.25}
    write(tmp_path, nb)
    with pytest.raises(ValueError, match="mean_leaves_its_inputs_alone is not called on a line of its own"):
        Course(tmp_path).prepare(LESSON)
