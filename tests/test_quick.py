"""`make quick` runs the tests of what has changed, and of nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
QUICK = runpy.run_path(str(ROOT / ".ci" / "quick.py"), run_name="quick")


@pytest.mark.parametrize(
    ("file", "lessons"),
    [
        ("autograder/answers/mutants/zero1/step.py", ["08_zero1"]),
        ("autograder/checks/zero1/state.py", ["08_zero1"]),
        ("solutions/03_step/03_step.ipynb", ["03_step"]),
        ("examples/class/submitted/student-01/03_step/03_step.ipynb", ["03_step"]),
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
    ],
)
def test_a_file_leads_to_the_tests_that_look_at_it(file, test):
    found = QUICK["tests_of"]([file])
    assert f"tests/{test}.py" in found and "tests/test_style.py" in found
    assert f"tests/{test}.py" not in QUICK["tests_of"](["README.md"])


def test_every_pattern_leads_to_test_files_that_exist():
    named = {name for _, tests in QUICK["TESTS"] for name in tests.split() if not name.startswith("\\")}
    assert not [name for name in named if not (ROOT / "tests" / f"{name}.py").is_file()]
