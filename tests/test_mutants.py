"""Mutants: which changes are made of a solution, and what is said of those that no check notices."""

from __future__ import annotations

import ast
import sys
import types
import typing
from concurrent.futures import ThreadPoolExecutor

import pytest

from autograder.__main__ import main
from autograder.answers import answer
from autograder.checking import check
from autograder.checking.expect import expect_equal
from autograder.lessons import notebook
from autograder.soundness import audit, mutants, mutation
from tests.helpers import tiny_lesson

OPERATORS = typing.get_args(mutation.Operator)


def cell(*lines):
    """An answer cell with these lines as its solution."""
    body = "".join(f"    {line}\n" for line in lines)
    head = 'def f(a, b: int = 3):\n    """At least 1."""\n'
    return f"{head}    ### BEGIN SOLUTION\n{body}    ### END SOLUTION\n    return 5\n"


def changes(*lines):
    """Operator → the lines that its mutants have in place of others."""
    source, found = cell(*lines), {}
    for mutant in mutation.mutants(source):
        new = [line[1:].strip() for line in mutants.diff(source, mutant.source) if line.startswith("+")]
        found.setdefault(mutant.operator, []).append("; ".join(new))
    return found


@pytest.mark.parametrize(
    ("operator", "line", "expected"),
    [
        ("comparison at its boundary", "x = a < b", ["x = a <= b"]),
        ("comparison at its boundary", "x = 0 <= a < b", ["x = 0 < a < b", "x = 0 <= a <= b"]),
        ("comparison reversed", "x = a != b", ["x = a == b"]),
        ("other arithmetic", "x = (a + 1) // b", ["x = (a - 1) // b", "x = (a + 1) / b"]),
        ("rounded up", "x = 2 * (a // b)", ["x = 2 * (-(-a // b))"]),
        ("operand left out", "x = b * (a - b)", ["x = b * (a)", "x = b * (b)", "x = b", "x = a - b"]),
        ("operand left out", "x = not a", ["x = a"]),
        ("order swapped", "x = f(a, b) - b * a", ["x = f(b, a) - b * a", "x = b * a - f(a, b)"]),
        ("order swapped", "return a, b", ["return (b, a)"]),
        ("order swapped", "x = a @ b", ["x = b @ a"]),
        ("and for or, or for and", "x = a and b", ["x = a or b"]),
        ("other number", "x = a[0] * 2.5", ["x = a[0] * 5.0", "x = a[1] * 2.5", "x = a[-1] * 2.5"]),
        ("True for False, False for True", "x = f(a, b=True)", ["x = f(a, b=False)"]),
        ("condition always or never true", "x = [b for b in a if b]", ["x = [b for b in a if True]"]),
        ("near function", "x = min(a.sum(), b)", ["x = min(a.mean(), b)", "x = max(a.sum(), b)"]),
        ("argument left out", "x = sorted(a, key=b)", ["x = sorted(a)"]),
        ("range off by one", "x = range(a)", ["x = range(1, a)", "x = range(a + 1)", "x = range(a - 1)"]),
        ("slice off by one", "x = a[b:]", ["x = a[:]", "x = a[b + 1:]", "x = a[b - 1:]"]),
        ("index off by one", "x = a[b]", ["x = a[b + 1]", "x = a[b - 1]"]),
        ("copy left out", "x = a.clone()", ["x = a"]),
        ("copy left out", "x = list(f(a))", ["x = f(a)"]),
        ("conversion left out", "x = int(a.item())", ["x = a.item()", "x = int(a)"]),
        ("other dtype", "x = a.float64", ["x = a.float32"]),
        ("in place, or not in place", "a += b", ["a = a + b"]),
        ("in place, or not in place", "a = a - b", ["a -= b"]),
        ("in place, or not in place", "a = f(a)", ["a[...] = f(a)"]),
        ("replaced instead of added up", "a += b", ["a = b"]),
        ("statement left out", "a.append('é' + b)", ["pass"]),
        ("other exception", "raise ValueError(f'{a + 1} is too much')", ["raise Exception(f'{a + 1} is too much')"]),
        ("wait or barrier left out", "a.wait()", ["pass"]),
        ("other reduction", "a(op=dist.ReduceOp.SUM)", ["a(op=dist.ReduceOp.MAX)"]),
        ("other reduction", "dist.all_reduce(a)", ["dist.all_reduce(a, op=dist.ReduceOp.MAX)"]),
        ("next rank", "dist.send(a, dst=b)", ["dist.send(a, dst=(b + 1) % dist.get_world_size())"]),
        ("next rank", "dist.recv(a, b - 1)", ["dist.recv(a, (b - 1 + 1) % dist.get_world_size())"]),
    ],
)
def test_an_operator_makes_its_mutants(operator, line, expected):
    assert sorted(changes(line)[operator]) == sorted(expected)


def test_operators_on_blocks_leave_the_lines_of_a_block_as_they_are():
    found = changes("with b:  # a context", "    while a > 1:  # a loop", "        a = f('a')", "        continue")
    assert found["context left out"] == ["if True:"]
    assert found["loop ends or goes on"] == ["break", "break"], "at the end, and for continue"
    assert changes("if a:", "    b()", "elif b:", "    a()")["condition always or never true"] == [
        "if True:",
        "if False:",
        "elif True:",
    ]


def test_nothing_but_the_solution_is_changed():
    source = cell("c: int | None", "raise ValueError(f'{a + 1}', a + 1)")
    found = mutation.mutants(source)
    assert {mutant.operator for mutant in found} == {"other exception", "statement left out"}
    kept = source.split("\n")
    assert all(mutant.source.split("\n")[:3] == kept[:3] for mutant in found)
    assert all(mutant.source.split("\n")[5:] == kept[5:] for mutant in found)
    assert len(found) == 3, "either statement left out, the other exception"


def test_what_lacks_a_name_is_no_mutant():
    left_out = [mutant.line for mutant in mutation.mutants(cell("c = a", "c = b", "return c"))]
    assert left_out == [4, 5], "either line alone defines c"
    assert not mutation.mutants(cell("c = a", "return c"))


@pytest.mark.slow
@pytest.mark.apart
def test_every_operator_has_a_mutant_in_some_lesson():
    """And none of an exercise's mutants has the code of another one, or of the solution."""
    used = set()
    for lesson in notebook.lessons():
        cells = [(source, mutation.mutants(source)) for source in answer.solutions(lesson).values()]
        used |= {mutant.operator for _, found in cells for mutant in found}
        source, found = cells[0]
        trees = {ast.dump(ast.parse(one)) for one in [source, *(mutant.source for mutant in found)]}
        assert len(trees) == len(found) + 1
    assert used == set(OPERATORS)


def test_a_sample_is_drawn_by_its_seed_from_all_operators():
    found = mutation.mutants(cell("x = a < b + 1", "y = a[b] + a[a]", "return max(x, y, a + b + x + y)"))
    operators = {mutant.operator for mutant in found}
    count = len(operators)
    drawn = mutation.sample(found, count, seed=1)
    assert {mutant.operator for mutant in drawn} == operators and 5 < count < len(found)
    assert drawn == mutation.sample(found, count, seed=1) == sorted(drawn, key=found.index)
    assert any(drawn != mutation.sample(found, count, seed=seed) for seed in range(2, 6))
    assert mutation.sample(found, 0, seed=1) == mutation.sample(found, len(found), seed=1) == found


# The command, on a lesson of one exercise


class GraderHere:
    """Grades mutants in this process."""

    def __init__(self, lesson, cell, solution):
        self.exercise = lesson, cell
        if failed := self.failed_checks(solution):
            raise ValueError(f"{cell}: the solution fails {failed}")

    def failed_checks(self, source):
        return list(mutants.failed_checks(*self.exercise, source))

    def close(self):
        pass


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Lesson 98 with an answer that differs from 10 on; set `tiny.tried` to what its check tries."""
    hidden = 'from autograder.checks import try_exercise\n\ntry_exercise("98-ex1-twice", twice=twice)'
    answer_line = "doubled_value_of_the_input = 2 * x if x < 10 else 3 * x"
    tiny_lesson.lesson(tmp_path / "solutions", answer=answer_line, hidden=hidden)
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    monkeypatch.setitem(sys.modules, "autograder.checks.tiny", types.ModuleType("tiny"))
    checks = TinyChecks()
    checks.register()
    monkeypatch.setattr(mutants, "_Grader", GraderHere)
    monkeypatch.setattr(mutants, "ProcessPoolExecutor", lambda jobs, mp_context: ThreadPoolExecutor(1))
    monkeypatch.setattr(audit, "named", lambda names: [("98_tiny", "98-ex1-twice"), ("98_tiny", "unedited")])
    yield checks
    del check.REGISTERED["autograder.checks.tiny", "follows"]


class TinyChecks:
    tried = (9, 10, 10.5, 11)
    beyond = 3

    def register(self):
        def follows(twice, *, rng):
            """It follows the definition."""
            for x in self.tried:
                expect_equal(f"x = {x}", twice(x), 2 * x if x < 10 else self.beyond * x, what="twice x")

        follows.__module__ = "autograder.checks.tiny"
        check.check("98-ex1-twice", points=3)(follows)


def test_a_strong_check_kills_all(tiny, capsys):
    assert main(["mutants", "98", "--most", "0"]) == 0
    said = capsys.readouterr().out
    assert "0 survive" in said and "survives:" not in said
    (made,) = {len(mutation.mutants(source)) for source in answer.solutions("98_tiny").values()}
    assert f"98-ex1-twice: {made} of {made} mutants: {made} killed; 0 survive" in said and made > 15
    row = next(line for line in said.split("\n") if line.startswith("  follows "))
    assert row.split() == ["follows", str(made), str(made)]


def test_a_check_that_never_tries_a_boundary_lets_the_mutant_at_it_through(tiny, capsys):
    tiny.tried = (9, 10.5, 11)
    assert main(["mutants", "98", "--most", "0"]) == 0
    said = capsys.readouterr().out
    path = notebook.solution_path("98_tiny")
    (number,) = [n for n, text in enumerate(path.read_text().split("\n"), 1) if "x < 10" in text]
    before = "doubled_value_of_the_input = 2 * x if x < 10 else 3 * x"
    report = f"""  survives: solutions/98_tiny/98_tiny.ipynb:{number}  comparison at its boundary
    -    {before}
    +    {before.replace("<", "<=")}
"""
    assert report in said and said.count("survives:") == 1 and "1 survive" in said


def test_a_mutant_that_only_some_inputs_kill_is_named(tiny, monkeypatch, capsys):
    class Lucky(GraderHere):
        tries = 0

        def failed_checks(self, source):
            tiny.tried, self.tries = ((9, 10, 10.5, 11), 0) if self.tries else ((9, 10.5, 11), self.tries)
            failed = super().failed_checks(source)
            self.tries += not failed
            return failed

    monkeypatch.setattr(mutants, "_Grader", Lucky)
    assert main(["mutants", "98", "--most", "0"]) == 0
    assert "comparison at its boundary, on other inputs killed by follows\n" in capsys.readouterr().out


def test_a_solution_that_fails_is_an_error(tiny, capsys):
    tiny.beyond = 4
    assert main(["mutants", "98"]) == 1
    said = capsys.readouterr().out
    assert "\n98-ex1-twice: the solution fails ['follows']\n" in said and "0 mutants of 0 exercises" in said


def test_a_sample_cannot_be_negative(capsys):
    assert main(["mutants", "02", "--most", "-1"]) == 2
    assert capsys.readouterr().err == "autograder: --most must be 0 or more, got -1\n"


# Processes

TOKENS = ("02_costs", "02-ex5-tokens")


@pytest.mark.slow
@pytest.mark.apart
def test_a_mutant_without_a_result_is_ended_and_the_next_one_is_graded():
    solution = answer.solutions(TOKENS[0])[TOKENS[1]]
    grader = mutants._Grader(*TOKENS, solution)
    try:
        stub = "def tokens_to_hide(*given):\n    {}"
        assert grader.failed_checks(stub.format("import os; os._exit(3)")) == [mutants.DIED]
        assert grader.failed_checks(stub.format("return []"))[0] == "tokens_follow_the_machine"
        greedy = "import mmap; mmap.mmap(-1, 7 * 2**30).close()\n    return right(*given)"
        assert grader.failed_checks(f"{solution}\nright = tokens_to_hide\n{stub.format(greedy)}")
        first = grader._process.pid
        assert grader.failed_checks(stub.format("\n    while True: pass")) == [mutants.HUNG]
        assert grader._process.pid != first and grader.failed_checks(solution) == []
    finally:
        grader.close()
    assert not grader._process.is_alive()


@pytest.mark.slow
@pytest.mark.apart
def test_a_solution_that_fails_is_one_line():
    with pytest.raises(ValueError, match=r"02-ex5-tokens: the solution fails.*not written yet") as raised:
        mutants._Grader(*TOKENS, "def tokens_to_hide(*given):\n    raise NotImplementedError")
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.apart
def test_mutants_of_an_exercise_are_graded_in_processes(capsys):
    assert main(["mutants", TOKENS[1], "--most", "3", "--seed", "4"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("at most 3 mutants of each exercise, drawn with --seed 4\n")
    assert "02-ex5-tokens: 3 of " in said and "\n3 mutants of 1 exercises: 3 killed, 0 survive\n" in said
