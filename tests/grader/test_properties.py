"""Marks by property: what each is worth, what a wrong answer keeps, what the page says, what is refused."""

from __future__ import annotations

import dataclasses
import html
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder import checks, properties
from autograder.__main__ import main
from autograder.answers import wrong
from autograder.checks import check, find
from autograder.desk import lms, marks
from autograder.grade import jail
from autograder.grade.course import Course
from autograder.grade.nbgrader import library, scoring
from autograder.grade.outcome import CellOutcome, Tried
from autograder.grade.running import run_cells
from autograder.grade.running.kernels import LocalKernel
from autograder.lesson import names, notebook
from tests.helpers.formgrader_server import environment

LESSON = "03_step"
MEAN, EMA = "03-ex2-all-reduce-mean", "03-ex4-ema-update"
EXERCISE = "99-ex1-a"
IMPORT = "from autograder.checks import try_exercise"


def graded_cell(source: str, points: float = 4) -> nbformat.NotebookNode:
    """A test cell of the made-up exercise, with the hidden part that its checks need."""
    metadata = {"nbgrader": {"grade": True, "points": points}}
    cell = new_code_cell(source, id=f"{EXERCISE}-test", metadata=metadata)
    cell.source = properties.with_hidden_part(cell)
    return cell


def cell_of(nb: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    return next(cell for cell in nb.cells if cell.id == name)


@pytest.fixture
def declare(monkeypatch):
    """A function that declares the checks of a made-up exercise: each name with the arguments of its decorator."""
    monkeypatch.setattr(check, "REGISTERED", {})
    monkeypatch.setattr(find, "REGISTERED", check.REGISTERED)
    monkeypatch.setattr(notebook, "lesson_of", lambda cell: "99_made_up")

    def declare(**said: str) -> None:
        for number, (name, arguments) in enumerate(said.items()):
            above, takes = "\n" * number, "f, g" if "both" in name else "f"
            source = f'{above}@check({EXERCISE!r}, {arguments})\ndef {name}({takes}, *, rng):\n    """It is {name}."""'
            exec(
                compile(source, "made_up.py", "exec"),
                {"check": check.check, "__name__": "autograder.checks.99_made_up.checks"},
            )

    return declare


# --- what a test cell is made of ------------------------------------------------------------------------


def test_the_core_comes_first_and_the_visible_part_last(declare):
    declare(small="points=1", large="points=3", no_trick_both="veto=True")
    test = graded_cell('"""What it tests."""\nassert f(1) == 1')
    core, veto, small, visible = properties.of_test(test)
    assert (core.name, core.points, veto.name, veto.points) == ("large", 3.0, "no_trick_both", 0.0)
    assert veto.source == f'{IMPORT}\ntry_exercise("{EXERCISE}", "no_trick_both", f=f, g=g)'
    assert (small.name, small.points) == ("small", 1.0)
    assert small.source == f'{IMPORT}\ntry_exercise("{EXERCISE}", "small", f=f)', "it needs no g"
    assert (visible.name, visible.points) == (properties.VISIBLE, 0.0)
    assert visible.source == '"""What it tests."""' + "\n" * 6 + "assert f(1) == 1", "line numbers stay"


def test_the_hidden_part_names_each_function_once(declare):
    declare(one_both="points=3", two="points=1")
    lines = graded_cell('"""What it tests."""\nassert f(1) == 1').source.split("\n")
    assert lines[0] == '"""What it tests."""' and lines[-1] == "assert f(1) == 1"
    assert lines[1:-1] == [
        "### BEGIN HIDDEN TESTS", IMPORT, "", f'try_exercise("{EXERCISE}", f=f, g=g)', "### END HIDDEN TESTS"
    ]  # fmt: skip
    assert names.of_source("\n".join(lines), "a").reads >= {"f", "g"}, "what the exercise builds on is read from here"


def test_a_hidden_part_that_is_there_is_replaced_where_it_is(declare):
    declare(one_both="points=4")
    right = graded_cell("x = 1").source
    stale = f"x = 1\n{right.replace('g=g', 'h=h').removesuffix('x = 1')}x = 2"
    assert properties.with_hidden_part(new_code_cell(stale, id=f"{EXERCISE}-test")) == stale.replace("h=h", "g=g")


def test_an_exercise_without_checks_has_no_hidden_part_of_ours(declare):
    own = "### BEGIN HIDDEN TESTS\nassert f(3)\n### END HIDDEN TESTS\nassert f(2)"
    cell = graded_cell(own)
    assert cell.source == own
    (whole,) = properties.of_test(cell)
    assert (whole.name, whole.points, whole.source) == ("", 4.0, own)


@pytest.mark.parametrize(
    ("said", "source", "parts"),
    [
        ({"one": "points=3", "two": "points=1"}, '"""What it tests."""\nimport numpy as np', [("one", 3), ("two", 1)]),
        ({"one": "points=2", "two": "points=2"}, "", [("one", 2), ("two", 2)]),
        ({"one": "points=4"}, "assert f(1)", [("one", 4), (properties.VISIBLE, 0)]),
    ],
    ids=["no visible part", "of two equal ones the first is the core", "the visible part is last"],
)
def test_a_cell_has_its_properties_and_a_visible_part_if_that_tests_anything(declare, said, source, parts):
    declare(**said)
    found = properties.of_test(graded_cell(source))
    assert [(one.name, one.points) for one in found] == parts
    assert "assert" not in found[0].source, "a check is tried first: it finds the hint"


@pytest.mark.parametrize(
    ("tried", "all_or_nothing", "points"),
    [
        ([("a", 2, True), ("b", 0.5, True), ("c", 0.5, False)], False, 2.5),
        ([("a", 2, False), ("b", 0.5, True), ("c", 1.5, True)], False, 2.0),
        ([("a", 2, False), ("b", 0.5, True), ("c", 1.5, True)], True, 0.0),
        ([("a", 2, True), ("trick", 0.0, False), ("b", 0.5, True)], False, 0.0),
        ([("a", 2, False), ("trick", 0.0, True), ("b", 0.5, True)], False, 0.5),
        ([], False, 0.0),
        ([("a", 2, True), ("b", 0.5, True), (properties.VISIBLE, 0.0, False)], False, 2.25),
        ([("a", 2, True), ("b", 0.5, False), (properties.VISIBLE, 0.0, False)], False, 2.0),
        ([(properties.VISIBLE, 2, True)], False, 2.0),
        ([(properties.VISIBLE, 2, False)], False, 0.0),
    ],
)
def test_points_add_up_and_a_visible_part_that_fails_alone_costs_a_tenth(tried, all_or_nothing, points):
    """Unless a course says otherwise, or a veto fails."""
    assert properties.earned(tried, all_or_nothing=all_or_nothing) == points


@pytest.mark.parametrize(("failing", "all_or_nothing", "because"), [
    ({"core"}, True, "Without the core"),
    ({"core", "trick"}, False, "An answer without the property that has no points"),
    ({"core"}, False, ""),
])  # fmt: skip
def test_it_is_said_why_properties_that_hold_earn_nothing(failing, all_or_nothing, because):
    tried = {"core": 1.5, "trick": 0.0, "other": 0.5}
    outcomes = [Tried("error" if name in failing else "ok", name=name, points=p) for name, p in tried.items()]
    test = CellOutcome(properties=outcomes, all_or_nothing=all_or_nothing)
    assert "".join(scoring.remarks(test)).startswith(because) and bool(scoring.remarks(test)) == bool(because)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("", "has no points: write @check(…, points=0.5), or veto=True if only a trick fails it"),
        ("points=0", "has no points: write @check(…, points=0.5), or veto=True if only a trick fails it"),
        ("points='all'", "has points='all': write a number above 0, in quarters of a point"),
        ("points=-1", "has points=-1: write a number above 0, in quarters of a point"),
        ("points=2, veto=True", "has veto=True, so it has no points of its own: leave out points=2"),
    ],
)
def test_a_check_without_points_is_refused_in_one_line(declare, said, says):
    with pytest.raises(ValueError, match=f"^{re.escape(f'made_up.py:2: two {says}')}$"):
        declare(one="points=1", two=said)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"one": "points=2", "two": "points=1"}, f"made_up.py:1: the checks of {EXERCISE} have 3 points in"),
        ({"one": "points=1", "two": "points=4"}, f"made_up.py:2: the checks of {EXERCISE} have 5 points in"),
        ({"one": "veto=True"}, f"made_up.py:1: the checks of {EXERCISE} have 0 points in"),
    ],
)
def test_points_that_do_not_fit_are_refused_in_one_line(declare, said, says):
    declare(**said)
    with pytest.raises(ValueError, match=f"^{re.escape(says)}") as caught:
        properties.of_test(graded_cell(""))
    assert "\n" not in str(caught.value)


def test_stale_hidden_tests_are_refused_in_one_line(declare):
    declare(one="points=4")
    cell = graded_cell("")
    says = f"^{EXERCISE}-test: the hidden tests of {EXERCISE} are stale: run `make notebooks`$"
    for stale in (cell.source.replace("f=f", "g=g"), cell.source.replace("f=f", "f=g"), "assert f(1)"):
        cell.source = stale
        with pytest.raises(ValueError, match=says):
            properties.of_test(cell)


def test_a_hidden_line_that_lacks_a_function_says_so(declare):
    declare(one_both="points=4")
    with pytest.raises(TypeError, match="one_both takes g, which this line does not name: run `make notebooks`"):
        checks.try_exercise(EXERCISE, f=len)


def test_where_a_cell_is():
    path, line = notebook.place(f"{MEAN}-test").split(":")
    assert f'"id": "{MEAN}-test"' in (notebook.ROOT / path).read_text().splitlines()[int(line) - 1]
    assert notebook.place("99-ex1-a-test") == "99-ex1-a-test"


def test_the_command_writes_what_is_stale_and_nothing_else(tmp_path, monkeypatch, capsys):
    path, right = tmp_path / "solutions" / LESSON / f"{LESSON}.ipynb", notebook.solution_path(LESSON).read_text()
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    path.write_text(right.replace("all_reduce_mean=all_reduce_mean", "mean=mean"))
    for said in (f"{notebook.place(f'{MEAN}-test')}: the hidden tests of {MEAN} written\n", ""):
        assert main(["hidden-tests", "03"]) == 0
        assert capsys.readouterr().out == said and path.read_text() == right


# --- a class that is graded -----------------------------------------------------------------------------


def lesson(*dropped: str) -> nbformat.NotebookNode:
    """Exercises 2 and 4 of lesson 03. The second, here, builds on the first."""
    kept = ("03-imports", MEAN, f"{MEAN}-test", EMA, f"{EMA}-test")
    nb = new_notebook(
        cells=[cell for cell in notebook.read(LESSON).cells if cell.id in kept and cell.id not in dropped]
    )
    answer = cell_of(nb, EMA)
    assert EMAS["right"] in answer.source
    answer.source = answer.source.replace(EMAS["right"], ON_THE_MEAN)
    return nb


def write(root, nb) -> None:
    folder = root / "solutions" / LESSON
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, folder / f"{LESSON}.ipynb")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    write(root, lesson())
    shutil.copy(notebook.ROOT / library.CONFIG, root / library.CONFIG)
    made = Course(root, 20, not jail.missing())
    made.prepare(LESSON)
    return made


#: Answers to exercise 2, by what is wrong with them.
RIGHT = "    return np.mean(worker_grads, axis=0)"
MEANS = {
    "right": RIGHT,
    "one array": "    return worker_grads.mean(axis=0)",
    "several workers": f"    if len(worker_grads) == 1:\n        return worker_grads\n{RIGHT}",
    "wrong": "    return np.max(worker_grads, axis=0)",
    "visible": f"    if np.shape(worker_grads) == (3, 2):\n        return np.zeros(2)\n{RIGHT}",
    "visible and one array": "    if np.shape(worker_grads) == (3, 2):\n        return np.zeros(2)\n"
    "    return worker_grads.mean(axis=0)",
    "ends": f"    if isinstance(worker_grads, list):\n        import os\n        os._exit(0)\n{RIGHT}",
    "not written": '    raise NotImplementedError("write this function")',
}
ON_THE_MEAN = "    return 2 * all_reduce_mean([decay * ema, (1 - decay) * w])"
EMAS = {
    "right": "    return decay * ema + (1 - decay) * w",
    "on the mean": ON_THE_MEAN,
    "on the mean, but for 0": f"    if decay == 0.0:\n        return ema\n{ON_THE_MEAN}",
}


def hand_in(course, student: str, mean: str, ema: str = "right") -> None:
    nb = lesson()
    cell_of(nb, MEAN).source = f"def all_reduce_mean(worker_grads):\n{MEANS[mean]}\n"
    cell_of(nb, EMA).source = f"def ema_update(ema, w, decay):\n{EMAS[ema]}\n"
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
    "core": "Up to a factor, the result is the mean over several workers, whose gradients are the rows of one array.",
    "length": "The result is as long as the mean.",
    "list": "A list of the workers' gradients gives the same.",
    "one": "The mean of one worker is its gradient, of shape (d,).",
    "visible": "The visible part of the test cell.",
}


def rows(text: str) -> dict[str, tuple[str, str]]:
    """sentence → (what became of it, its points), of the table in an exercise's section."""
    found = re.findall(r"<td>([^<]*)</td><td>(.*?)</td><td class=\"number\">([^<]*)</td>", text)
    return {says: (result, worth) for result, says, worth in found}


#: The kind of answer → its points, and what became of the core, the length, the list, one worker, the visible part.
WORTH = {
    "right": (2.0, "passed", "passed", "passed", "passed", "passed"),
    "one array": (1.75, "passed", "passed", "failed", "passed", "passed"),
    "several workers": (1.75, "passed", "passed", "passed", "failed", "passed"),
    "wrong": (0.25, "failed", "failed", "failed", "passed", "failed"),
    "visible": (1.8, "passed", "passed", "passed", "passed", "failed"),
    "visible and one array": (1.75, "passed", "passed", "failed", "passed", "failed"),
    "ends": (1.5, "passed", "passed", "failed", "not tried", "not tried"),
    "not written": (0.0, "failed", "not tried", "not tried", "not tried", "not tried"),
}


@pytest.mark.jail
@pytest.mark.parametrize("kind", WORTH)
def test_a_property_counts_by_itself(course, kind):
    score, *results = WORTH[kind]
    assert grade(course, "ada", kind) == (score, 2.0)
    text = section(course, "ada")
    table = rows(text)
    assert [table[SAYS[name]][0] for name in SAYS] == results
    assert [table[SAYS[name]][1] for name in SAYS] == ["1", "0.5", "0.25", "0.25", "0"]
    assert f"{score:g} / 2" in text
    assert ("Only the visible part of the test fails" in text) == (kind == "visible")
    headings = re.findall("<h3>(.*?)</h3>", text)
    assert headings == [SAYS[name] for name, result in zip(SAYS, results, strict=True) if result == "failed"]


@pytest.mark.jail
def test_each_failure_has_its_own_message_case_and_seed(course):
    grade(course, "bob", "wrong")
    text = section(course, "bob")
    assert "N = 4, d = 3" in text and "a list of 4 arrays" in text
    nb = nbformat.read(course.root / "autograded" / "bob" / LESSON / f"{LESSON}.ipynb", as_version=4)
    tried = cell_of(nb, f"{MEAN}-test").metadata.autograder.properties
    assert [one.status for one in tried] == ["error", "error", "error", "ok", "error"]
    assert [bool(one.get("seed")) for one in tried] == [True, True, True, False, False]


@pytest.mark.jail
def test_a_carried_exercise_is_marked_by_property(course):
    assert grade(course, "cyd", "wrong", "on the mean") == (0.25, 2.0)
    assert "it failed only because of exercise 2" in section(course, "cyd", EMA)
    score = grade(course, "dan", "wrong", "on the mean, but for 0")[1]
    text = section(course, "dan", EMA)
    assert score == 1.75 and "The rest failed only because of exercise 2. Fix that first." in text
    assert [result for result, _ in rows(text).values()] == ["right", "failed", "right"]


@pytest.mark.thorough
@pytest.mark.jail
def test_all_front_doors_show_the_same_fraction(course):
    grade(course, "eve", "one array")
    hand_in(course, "fay", "one array")
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
    assert "eve,03_step,3.75,4,,1.75,,2\n" in (course.root / "grades.csv").read_text()
    found = marks.read(course)
    assert "3.75" in next(line for line in lms.canvas(found).splitlines() if "eve" in line)
    assert "3.75" in next(line for line in lms.moodle(found).splitlines() if "eve" in line)
    mark = next(one for one in found.submissions if one.student == "eve").marks[0]
    assert (mark.score, mark.lost) == (1.75, True) and "a list of 4 arrays" in mark.comment


@pytest.mark.thorough
def test_without_a_jail_the_marks_are_the_same(course, tmp_path):
    write(tmp_path, lesson())
    other = Course(tmp_path, 20, jail=False)
    other.prepare(LESSON)
    assert grade(other, "ada", "one array") == (1.75, 2.0)
    assert grade(other, "bob", "ends") == (1.5, 2.0)


def test_without_a_jail_a_failure_is_the_same_record(tmp_path):
    """It is asked of the student's kernel, where the check ran, with the hints that were found there."""
    known = next(one for one in wrong.of_exercise(MEAN) if "workers_are_added" in (one.fails or ("workers_are_added",)))
    kernel = LocalKernel(str(tmp_path))
    kernel.start()
    try:
        setup = [cell.source for cell in lesson().cells if notebook.is_setup(cell) and cell.id != MEAN]
        assert [kernel.run(source, 60).status for source in (*setup, known.source)] == ["ok"] * (len(setup) + 1)
        core = properties.of_test(cell_of(lesson(), f"{MEAN}-test"))[0]
        failure = run_cells.failure_of(kernel.run_test(core.source, 60))
        assert (failure.check, failure.kind) == (core.name, "wrong") and "(case: " not in failure.message
        assert known.name in [hint.name for hint in failure.hints] and failure.case
        assert kernel.run_test("1 / 0", 60).raised is None
        assert kernel.run_test(core.source.replace(core.name, "no_such_check"), 60).error[0] == "ValueError"
    finally:
        kernel.stop()


def test_in_jupyterlab_the_cell_stops_at_the_first_failure():
    """A student who has the hidden tests, as in the solution, sees the first failure alone."""
    space = notebook.functions(LESSON)
    space["all_reduce_mean"] = lambda worker_grads: [0.0]
    with pytest.raises(AssertionError, match="the result, divided by its length,") as caught:
        exec(cell_of(lesson(), f"{MEAN}-test").source, space)
    assert "a list of" not in str(caught.value)


# --- what is refused at release -------------------------------------------------------------------------


@pytest.fixture
def change(monkeypatch):
    """A function that changes what the decorator of the check `mean_takes_a_list` says."""
    found = next(one for one in checks.of_exercise(MEAN) if one.name == "mean_takes_a_list")
    (key,) = (key for key, one in check.REGISTERED.items() if one is found)
    return lambda **said: monkeypatch.setitem(check.REGISTERED, key, dataclasses.replace(found, **said))


def test_points_that_do_not_add_up_are_one_line_at_release(tmp_path, change):
    write(tmp_path, lesson())
    change(points=0.5)
    says = rf"parts\.py:\d+: the checks of {MEAN} have 2\.25 points in all, but .*ipynb:\d+, its test cell, has 2$"
    with pytest.raises(ValueError, match=says) as caught:
        Course(tmp_path).prepare(LESSON)
    assert "\n" not in str(caught.value)


def test_a_parameter_that_names_no_function_is_one_line_at_release(tmp_path, change):
    def mean_takes_a_list(all_reduce_maen, *, rng):
        """Its parameter is misspelled."""

    mean_takes_a_list.__module__ = "autograder.checks.03_step.checks.parts"
    change(run=mean_takes_a_list)
    nb = lesson()
    test = cell_of(nb, f"{MEAN}-test")
    test.source = properties.with_hidden_part(test)
    assert "all_reduce_maen=all_reduce_maen" in test.source
    write(tmp_path, nb)
    says = r"test_properties\.py:\d+: mean_takes_a_list takes all_reduce_maen, which no cell of the lesson"
    with pytest.raises(ValueError, match=says):
        Course(tmp_path).prepare(LESSON)


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
