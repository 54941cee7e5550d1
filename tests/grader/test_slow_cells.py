"""A slow cell costs no other exercise its marks, wherever it stands, and the page says which cells took the time.

The clock is one of the test's own: it goes on by what each cell says that it takes.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder import properties
from autograder.grade import outcome
from autograder.grade.nbgrader import slow_cells
from autograder.grade.running import carried_forward, run_cells
from autograder.grade.running.kernels import Reply
from tests.helpers.toy_course import Toy, submission

EXERCISES = 7
#: Seconds of each property of an honest exercise, and how many it has.
HONEST, PROPERTIES = 5, 4
LIMITS = run_cells.Limits(60, 240, 900)


class Clock:
    """Seconds that have passed; a kernel whose cells take what they say (`# takes 59`), or end it (`# ends it`)."""

    def __init__(self):
        self.seconds, self.ran = 0.0, list[str]()

    def now(self) -> float:
        return self.seconds

    def start(self):
        pass

    stop = start

    def run(self, source, timeout):
        takes = re.search(r"# takes ([\d.]+)", source)
        seconds = float(takes[1]) if takes else 0.1
        self.ran.append(source)
        self.seconds += min(seconds, timeout)
        if seconds > timeout:
            return Reply("timeout")
        return Reply("died" if "# ends it" in source else "error" if "# wrong" in source else "ok")

    run_test = run


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run_cells, "clock", clock)
    monkeypatch.setattr(carried_forward, "clock", clock)
    monkeypatch.setattr(run_cells, "time", SimpleNamespace(monotonic=clock.now, sleep=lambda seconds: None))
    monkeypatch.setattr(
        properties,
        "of_test",
        lambda test: [properties.Property(f"p{n}", 1.0, test.source) for n in range(PROPERTIES)],
    )
    return clock


def answer(number: int, source: str = "def f(): pass") -> nbformat.NotebookNode:
    return new_code_cell(source, id=f"07-ex{number}-f", metadata={"nbgrader": {"grade": False, "solution": True}})


def graded(number: int, source: str = f"# takes {HONEST}") -> nbformat.NotebookNode:
    metadata = {"nbgrader": {"grade": True, "solution": False, "points": 1}}
    return new_code_cell(source, id=f"07-ex{number}-f-test", metadata=metadata)


def notebook_of(
    before: str = "", instead: dict[str, str] | None = None, own: list[str] | None = None
) -> list[nbformat.NotebookNode]:
    """An honest notebook, but for some cells: `instead` of those of these ids, `own` between exercises 2 and 3."""
    cells = [new_code_cell("import math", id="07-imports")]
    for number in range(1, EXERCISES + 1):
        if number == 3:
            cells += [new_code_cell(source, id=f"own{n}") for n, source in enumerate(own or [])]
        cells += [answer(number), graded(number)]
    for cell in cells:
        cell.source = (instead or {}).get(cell.id, cell.source)
    return cells


def statuses(found: dict[str, outcome.CellOutcome]) -> dict[int, str]:
    """What became of each exercise's test."""
    return {int(name[5]): one.status for name, one in found.items() if name.endswith("-test")}


SLOW_TEST = "# takes 235"
#: What is slow → the cells, and the exercises that may fail for it.
CASES = {
    "an answer that does not end": ({"instead": {"07-ex2-f": "# takes 1000"}}, set()),
    "answers that are slow at import": ({"instead": {f"07-ex{n}-f": "# takes 59" for n in (1, 2, 3)}}, set()),
    "an exercise of which each property takes nearly its limit": ({"instead": {"07-ex2-f-test": SLOW_TEST}}, {2}),
    "two such exercises": ({"instead": {"07-ex2-f-test": SLOW_TEST, "07-ex3-f-test": SLOW_TEST}}, {2, 3}),
    "an exercise whose test does not end": ({"instead": {"07-ex1-f-test": "# takes 1000"}}, {1}),
    "cells of their own in between": ({"own": ["# takes 59"] * 20}, set()),
    "cells of their own that do not end": ({"own": ["# takes 1000"] * 20}, set()),
    "a slow cell that is run again each time a test ends the kernel": (
        {"own": ["# takes 59"] * 4, "instead": {f"07-ex{n}-f-test": "# ends it" for n in (3, 4, 5, 6)}},
        {3, 4, 5, 6},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_slow_costs_no_other_exercise_its_marks(clock, name):
    how, slow = CASES[name]
    cells = notebook_of(**how)
    found = run_cells.run_cells(cells, lambda: clock, LIMITS)
    lost = {number for number, status in statuses(found).items() if status != "ok"}
    print(name, "lost", lost, "seconds", clock.seconds)
    assert lost <= slow
    assert clock.seconds <= 2 * LIMITS.notebook


class CallsSlowAnswer(Clock):
    """A kernel in which the test of exercise 4 ends only if the lesson's answer to exercise 2 was run."""

    def __init__(self, clock: Clock):
        super().__init__()
        self.clock = clock

    def run_test(self, source, timeout):
        waits = "f4" in source and "def f2(): return 0" not in self.ran
        return self.run("# takes 1000" if waits else source, timeout)

    def run(self, source, timeout):
        before, self.seconds = self.seconds, 0.0
        reply = super().run(source, timeout)
        self.clock.seconds += self.seconds
        self.seconds = before
        return reply


def test_an_exercise_that_calls_a_slow_answer_keeps_its_marks(clock):
    """The slow answer is right, so its own test holds; the page names it where the other test was stopped."""
    instead = {"07-ex4-f": "def f4(): f2()", "07-ex4-f-test": "f4()"}
    cells = notebook_of(instead={**instead, "07-ex2-f": "def f2(): return sum(range(10**9))"})
    lesson = new_notebook(cells=notebook_of(instead={**instead, "07-ex2-f": "def f2(): return 0"}))
    found = run_cells.run_cells(cells, lambda: CallsSlowAnswer(clock), LIMITS)
    assert [number for number, status in statuses(found).items() if status != "ok"] == [4]
    carried_forward.try_again(cells, found, lesson, lambda: CallsSlowAnswer(clock), LIMITS)
    assert all(one.carried == ["07-ex2-f"] for one in found["07-ex4-f-test"].properties)


def test_a_slow_second_run_leaves_the_others_theirs(clock):
    """Exercises 2 to 7 build on exercise 1, which is wrong. With the lesson's answer, exercise 2 is slow."""

    class Second(CallsSlowAnswer):
        def run_test(self, source, timeout):
            if "def f1(): return 0" not in self.ran:
                return self.run("# wrong", timeout)
            return self.run("# takes 235" if "f2" in source else source, timeout)

    numbers = range(2, EXERCISES + 1)
    instead = {f"07-ex{n}-f": f"def f{n}(): f1()" for n in numbers} | {f"07-ex{n}-f-test": f"f{n}()" for n in numbers}
    cells = notebook_of(instead={**instead, "07-ex1-f": "def f1(): return 1"})
    lesson = new_notebook(cells=notebook_of(instead={**instead, "07-ex1-f": "def f1(): return 0"}))
    found = run_cells.run_cells(cells, lambda: Second(clock), LIMITS)
    assert set(statuses(found).values()) == {"error"}
    carried_forward.try_again(cells, found, lesson, lambda: Second(clock), LIMITS)
    carried = {name for name, one in found.items() if one.properties and all(tried.carried for tried in one.properties)}
    assert carried == {f"07-ex{number}-f-test" for number in (3, 4, 5, 6, 7)}


def said(clock, **how) -> str:
    cells = notebook_of(**how)
    for name, found in run_cells.run_cells(cells, lambda: clock, LIMITS).items():
        outcome.to_metadata(next(cell for cell in cells if cell.id == name), found)
    return slow_cells.remark(cells)


def test_the_page_names_the_cells_that_took_the_time(clock):
    assert said(clock, instead={"07-ex2-f-test": SLOW_TEST}) == (
        "A limit of time was met. Most of the time went into the tests of exercise 2 (478 s)."
    )
    own = "import time\n# all seeds\nfor seed in range(99): run()  # takes 59"
    slow = {"own": [own], "instead": {"07-ex1-f": "# takes 1000"}}
    assert said(clock, **slow) == (
        "A limit of time was met. Most of the time went into your answer to exercise 1 (60 s), "
        "the cell “for seed in range(99): run()  # takes 59” above exercise 3 (59 s) "
        "and the tests of exercise 7 (20 s)."
    )
    assert "then left out" in said(clock, **CASES["cells of their own in between"][0])


def test_the_page_names_no_cell_where_no_limit_was_met(clock):
    assert said(clock, own=["# takes 59"]) == "" == said(clock, instead={"07-ex2-f-test": "# wrong"})


@pytest.mark.jail
def test_the_time_of_a_real_cell_is_measured_and_shown(tmp_path):
    toy, nb = Toy(tmp_path, timeout=2), submission()
    nb.cells.insert(2, new_code_cell("while True:\n    pass"))
    assert toy.grade(nb) == {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}
    found = re.search(r"went into the cell “while True:” above exercise 1 \((\d\.\d) s\)", toy.page())
    assert found and 2.0 <= float(found[1]) < 4.0
