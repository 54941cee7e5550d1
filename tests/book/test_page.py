"""`make page` and `make figure` build one page of the book, and `make figure` runs the tests of its figure."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = runpy.run_path(str(ROOT / ".ci" / "page.py"), run_name="page")
#: Those that move.
FIGURES = sorted(path.stem for path in (ROOT / "book" / "figures").glob("*.py") if path.with_suffix(".js").is_file())


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_has_a_chapter_and_tests_that_drive_it(name):
    lesson, directive = PAGE["shown"](name)
    assert re.fullmatch(rf"(:::+){{live-figure}} {name}\n.*\n\1", directive, re.DOTALL)
    assert PAGE["tests_of"](name, f"chapter_{lesson[:2]}")


def test_the_tests_of_one_figure_are_not_those_of_its_neighbor():
    ring, deadlock = (set(PAGE["tests_of"](name, "chapter_01")) for name in ("ring", "deadlock"))
    assert "test_the_ring_on_the_page_shows_what_its_logic_says" in ring
    assert "test_a_ring_hangs_on_the_page_when_it_hangs_in_a_run" in deadlock and not ring & deadlock


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["figure", "nope"], "figure: no chapter shows a figure 'nope': there are accumulator, buckets"),
        (["figure"], "figure: name one: make page LESSON=08_zero1, or make figure NAME=race"),
        (["chapter", "99"], "chapter: no lesson '99'; there are: 01_collectives"),
    ],
)
def test_what_there_is_not_is_named_in_one_line(capsys, arguments, says):
    assert PAGE["main"](*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(says) and error.count("\n") == 1


def test_a_figure_that_no_test_drives_is_named():
    with pytest.raises(ValueError, match=r"no test drives race: add one to tests/book/test_figures\.py that takes"):
        PAGE["tests_of"]("race", "chapter_01")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.browser
def test_a_figure_is_built_alone_and_driven_by_its_tests():
    done = subprocess.run([sys.executable, ".ci/page.py", "figure", "race"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
    page = (ROOT / "_build/page/figure-race/_build/html/book/02_costs.html").read_text()
    assert page.count("<figure-race") == 1 and "What others measured" not in page


def test_a_page_that_is_no_chapter_is_built_without_running_one(monkeypatch):
    monkeypatch.setitem(PAGE["chapter"].__globals__, "build", lambda source, name, pages: Path("html", name, pages[0]))
    assert PAGE["chapter"]("plan") == Path("html/plan/book/plan/book/plan.html")
