"""`make quick` runs the tests of what has changed, and of nothing else."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
QUICK = runpy.run_path(str(ROOT / ".ci" / "quick.py"), run_name="quick")


@pytest.mark.parametrize(
    ("file", "lessons"),
    [
        ("solutions/08_zero1/wrong.md", ["08_zero1"]),
        ("solutions/08_zero1/checks/state.py", ["08_zero1"]),
        ("solutions/03_step/03_step.ipynb", ["03_step"]),
        ("book/05_ddp.md", ["05_ddp"]),
        ("autograder/checking/expect.py", []),
        ("book/index.md", []),
    ],
)
def test_a_file_leads_to_its_lesson(file, lessons):
    assert QUICK["lessons_of"]([file]) == lessons


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("ranks/hang.py", "ranks/test_hangs"),
        ("tests/ranks/test_ranks.py", "ranks/test_ranks"),
        ("autograder/checking/expect.py", "test_check"),
        ("autograder/grading/jail/wire.py", "test_wire"),
        ("autograder/insight/lms.py", "test_lms"),
        ("tests/test_costs.py", "test_costs"),
        ("autograder/authoring/templates/exercise/wrong.md", "test_new_exercise"),
        (".ci/page.py", "test_page"),
    ],
)
def test_a_file_leads_to_the_tests_that_look_at_it(file, test):
    found = QUICK["tests_of"]([file])
    assert f"tests/{test}.py" in found and "tests/test_style.py" in found
    assert f"tests/{test}.py" not in QUICK["tests_of"](["README.md"])


@pytest.mark.parametrize("file", ["autograder/authoring/rules.py", "solutions/02_costs/checks/steps.py"])
def test_the_rules_of_lessons_are_tried_when_they_or_a_lesson_change(file):
    assert "tests/test_lessons.py" in QUICK["tests_of"]([file])


@pytest.mark.parametrize(
    ("files", "tests"),
    [
        (["book/figures/race.js"], "chapter_02 or every_figure"),
        (["book/figures/ring.css", "book/figures/stack.py"], "chapter_01 or chapter_08 or every_figure or at_home"),
        (["book/figures/race.js", "book/figures/stepper.js"], ""),
        (["book/_ext/live_figure.py"], ""),
        (["book/05_ddp.md"], None),
    ],
)
def test_a_figure_leads_to_the_tests_that_drive_it_on_its_page(files, tests):
    assert QUICK["figures_of"](files) == tests


def test_the_tests_of_a_figure_are_found_by_its_chapter():
    """They need the built book, so no other command than `make thorough` would run them."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:xdist", "-m", "thorough"]
    command += ["-k", QUICK["figures_of"](["book/figures/race.js"]), "tests/test_figures.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    found = {line.split("::")[1].split("@")[0] for line in done.stdout.splitlines() if "::" in line}
    assert {"test_the_race_is_timed_by_the_lessons_formulas"} < found, done.stdout + done.stderr
    assert not any("buckets" in name for name in found)


def test_every_pattern_leads_to_test_files_that_exist():
    named = {name for _, tests in QUICK["TESTS"] for name in tests.split() if not name.startswith("\\")}
    assert not [name for name in named if not (ROOT / "tests" / f"{name}.py").is_file()]
