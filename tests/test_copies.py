"""Which pairs of students the report names because their answers are nearly alike."""

import ast
import difflib
import heapq
import inspect
import textwrap

import pytest

from autograder.insight import copies, report
from autograder.insight.marks import ClassMarks, Mark, Student, Submission

#: Functions by different people, in the place of answers.
DIFFERENT = [
    textwrap.dedent(inspect.getsource(one))
    for one in (
        *(difflib.get_close_matches, difflib.unified_diff, difflib.context_diff, difflib.ndiff, heapq.merge),
        *(heapq.nsmallest, textwrap.dedent, textwrap.indent, inspect.getmodule, inspect.cleandoc),
    )
]
NAME = "07-ex1-double"


def handed_in(*answers):
    """A class that handed in these answers to one exercise, as Python if not told otherwise."""
    marks = [Mark(NAME, 1.0, 1.0, 1.0, "")]
    files = [one if isinstance(one, dict) else {f"{NAME}.py": one} for one in answers]
    return [Submission(f"s{n:02}", "07_toy", 1.0, 1.0, marks, answers=one) for n, one in enumerate(files)]


def disguised(source):
    """The same code with other names for its variables, without comments and docstring, and laid out anew."""
    tree = ast.parse(source)
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in stored:
            node.id = f"my_{node.id}"
    return f"# My own work.\n{ast.unparse(tree)}"


def named(answers, stubs=None):
    return [pair.students for pair in copies.pairs(handed_in(*answers), stubs or {})]


def test_a_disguised_copy_is_named_and_nobody_else():
    (pair,) = copies.pairs(handed_in(*DIFFERENT, disguised(DIFFERENT[1])), {})
    assert pair.students == ("s01", "s10") and pair.share > 0.85 and pair.exercises == [NAME]


def test_a_copy_in_a_longer_answer_is_named():
    assert named([*DIFFERENT, DIFFERENT[0] + DIFFERENT[5].replace("heapq", "x")]) == [("s00", "s10"), ("s05", "s10")]


def test_what_most_students_have_is_no_copy():
    shared = [DIFFERENT[0]] * (copies.FEW + 1)
    assert named([*shared, *DIFFERENT[1:]]) == []
    assert len(named([*shared[1:], *DIFFERENT[1:]])) == 3, "three who copy from each other are few"


def test_what_was_handed_out_is_no_copy():
    both = [*DIFFERENT[1:], DIFFERENT[0], disguised(DIFFERENT[0])]
    assert named(both) and named(both, {f"{NAME}.py": DIFFERENT[0]}) == []


def test_short_answers_are_not_compared():
    short = "def double(x):\n    return 2 * x\n"
    assert named([*DIFFERENT, short, short]) == []


def test_words_and_code_that_is_no_python_are_compared_too():
    text = " ".join(f"Reason {n} is that the ring has {n} more links." for n in range(9))
    assert named([*DIFFERENT, {"07-q1-why.md": text}, {"07-q1-why.md": f"**{text.upper()}**"}]) == [("s10", "s11")]
    assert named([*DIFFERENT, DIFFERENT[0] + "\n)"]) == []
    assert named([*DIFFERENT, *[DIFFERENT[0] + "\n)"] * 2]) == [("s10", "s11")]


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_pair_is_named_from_four_fifths_on(share):
    lines = [f"x{n} = first_{n}(second_{n}) + third_{n} ** {n}" for n in range(100)]
    mine = [line.replace("_", "_other_") if n >= 100 * share else line for n, line in enumerate(lines)]
    assert bool(named(["\n".join(lines), "\n".join(mine)])) == (share > copies.ALIKE)


def test_the_page_names_pair_share_and_exercise_and_says_that_it_is_no_proof(tmp_path):
    graded = handed_in(*DIFFERENT, DIFFERENT[1])
    found = ClassMarks(tmp_path, [Student(one.student) for one in graded], graded, [])
    text = report.page(found, tmp_path / "report.html")
    assert "s01 and s10" in text and "100 %" in text and "This is no proof" in text
    graded[10].answers = {}
    assert "no proof" not in report.page(found, tmp_path / "report.html")
