"""An error that a check meets is the student's, or the check's own: nobody is blamed for the other's mistake."""

from __future__ import annotations

import linecache
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from autograder.checks import check, module, stage
from autograder.checks.cases import Call
from autograder.checks.expect import RAISED, WRONG, CheckFailed, Failure
from ranks import source as places

common = module("02_costs", "common")


def students(source: str) -> Any:
    """What a cell of a student defines last."""
    name, space = "<cell of a student>", {"__name__": "__main__"}
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec", dont_inherit=True), space)
    return list(space.values())[-1]


def failure(body, source: str) -> CheckFailed:
    """How this check fails on a student's cell."""
    found = check.attempt(body, (students(source),), 1)
    assert found is not None
    return found


# ---- the checks: right ones, when the student's code is at fault ----


def calls(double, *, rng):
    double(3)


def yields(double, *, rng):
    yield Call(double, 3, gives=6)


def calls_inside(double, *, rng):
    stage.call_inside(double, 3)


def yields_a_lambda(double, *, rng):
    yield Call(lambda x: double(x), 3, gives=6, name="three")


def calls_by_a_helper(double, *, rng):
    helper(double)


def helper(function):
    return [function(x) for x in (1, 2)]


def calls_in_many_lines(double, *, rng):
    [
        double(
            len("three"),
        )
        for _ in range(2)
    ]


def calls_what_it_returns(make, *, rng):
    make(2)(3)


def gives_a_function(double, *, rng):
    double(lambda x, y: x)


def uses_an_object(shard, *, rng):
    shard(4).step(1)


def reads_an_object(shard, *, rng):
    shard(4).numel + 1


def measures_an_object(shard, *, rng):
    made = shard(4)
    len(made)


def unpacks_an_object(shard, *, rng):
    made = shard(4)
    _first, _second = made


MODULE = "from torch import nn\nclass Shard(nn.Module):\n    pass"
SHARD = "class Shard:\n    def __init__(self, n): pass\n"


@pytest.mark.parametrize(
    ("body", "source", "says"),
    [
        (calls, "def double(x):\n    return x + y", "NameError: name 'y' is not defined"),
        (calls, "def double(x):\n    return x + 'a'", "TypeError: unsupported operand"),
        (calls, "def double(x):\n    return len(x)", "TypeError: object of type 'int' has no len"),
        (calls, "import numpy\ndef double(x):\n    return numpy.stack(x)", "TypeError: "),
        *[
            (body, "def double(x, y):\n    return x + y", r"TypeError: double\(\) missing 1 required positional")
            for body in (calls, yields, calls_inside, yields_a_lambda, calls_by_a_helper, calls_in_many_lines)
        ],
        *[(body, "double = 6", "TypeError: 'int' object is not callable") for body in (calls, yields, yields_a_lambda)],
        (yields_a_lambda, "def double(x):\n    return None.shape", "AttributeError: 'NoneType' object has no"),
        (calls, "double = lambda: 6", r"TypeError: <lambda>\(\) takes 0 positional arguments but 1 was given"),
        (calls, "from math import ldexp as double", r"TypeError: (math\.)?ldexp\(?\)? "),
        (
            calls_what_it_returns,
            "def make(x):\n    def inner(): return x\n    return inner",
            r"TypeError: make.<locals>",
        ),
        (gives_a_function, "def double(f):\n    return f(1)", r"TypeError: .*<lambda>\(\) missing 1 required"),
        (uses_an_object, "class Shard:\n    pass", r"TypeError: Shard\(\) takes no arguments"),
        (uses_an_object, SHARD, "AttributeError: 'Shard' object has no attribute 'step'"),
        (uses_an_object, SHARD + "    def step(self): pass", r"TypeError: Shard.step\(\) takes 1 positional"),
        (uses_an_object, SHARD + "    step = 3", "TypeError: 'int' object is not callable"),
        (uses_an_object, MODULE, r"TypeError: Shard\.__init__\(\) takes 1 positional"),
        (reads_an_object, SHARD, "AttributeError: 'Shard' object has no attribute 'numel'"),
        (measures_an_object, SHARD, r"TypeError: object of type 'Shard' has no len\(\)"),
        (unpacks_an_object, SHARD, "TypeError: cannot unpack non-iterable Shard object"),
    ],
)
def test_an_error_of_the_students_code_is_the_students(body, source, says):
    failed = failure(body, source)
    assert failed.failure.fault == "" and failed.failure.kind == RAISED
    with pytest.raises(CheckFailed, match=rf"^Your code raised ({says})"):
        raise failed


# ---- checks that are wrong ----


def misnames(double, *, rng):
    return dbl(3)  # noqa: F821


def adds_a_text(double, *, rng):
    return double(3) + "1"


def calls_a_helper_badly(double, *, rng):
    def helper(function):
        return function(3)

    return helper(double, 3)


def calls_a_lambda_badly(double, *, rng):
    return (lambda x: x)(double, 3)


def calls_the_lessons_helper_badly(double, *, rng):
    return common.ring_seconds(double, 1, 2, 3, 4, 5, 6, no_such=7)


def asks_numpy_for_nothing(double, *, rng):
    return np.no_such(double(3))


def misspells_rng(double, *, rng):
    return double(rng.intergers(3))


def stacks_scalars(double, *, rng):
    return np.stack(double(3))


def reads_a_shape(double, *, rng):
    return double(3).shape


def yields_a_wrong_lambda(double, *, rng):
    yield Call(lambda x: double(x) + "1", 3, gives=6, name="three")


def yields_a_lambda_with_a_parameter_too_few(double, *, rng):
    yield Call(lambda: double(3), 3, gives=6, name="three")


def yields_what_cannot_be_seen(double, *, rng):
    yield Call(double, 3, gives=6, sees=lambda result: result)


def makes_no_call(double, *, rng):
    yield Call(double, 3, give=6)


def has_a_local_too_late(double, *, rng):
    double(x)  # noqa: F821
    x = 3  # noqa: F841


DOUBLE = "def double(x):\n    return 2 * x"


@pytest.mark.parametrize(
    ("body", "source", "says"),
    [
        (misnames, DOUBLE, "NameError: name 'dbl' is not defined"),
        (adds_a_text, DOUBLE, "TypeError: unsupported operand type"),
        (calls_a_helper_badly, DOUBLE, "TypeError: calls_a_helper_badly.<locals>.helper() takes 1 positional"),
        (calls_a_lambda_badly, DOUBLE, "TypeError: calls_a_lambda_badly.<locals>.<lambda>() takes 1 positional"),
        (calls_the_lessons_helper_badly, DOUBLE, "TypeError: ring_seconds() "),
        (asks_numpy_for_nothing, DOUBLE, "AttributeError: module 'numpy' has no attribute 'no_such'"),
        (misspells_rng, DOUBLE, "AttributeError: 'numpy.random._generator.Generator' object has no attribute"),
        (stacks_scalars, DOUBLE, "TypeError: "),
        (reads_a_shape, "def double(x):\n    pass", "AttributeError: 'NoneType' object has no attribute 'shape'"),
        (yields_a_wrong_lambda, DOUBLE, "TypeError: unsupported operand type"),
        (yields_a_lambda_with_a_parameter_too_few, DOUBLE, "TypeError: "),
        (yields_what_cannot_be_seen, DOUBLE, "TypeError: "),
        (makes_no_call, DOUBLE, "TypeError: Call.__init__() got an unexpected keyword argument 'give'"),
        (has_a_local_too_late, DOUBLE, "UnboundLocalError: "),
    ],
)
def test_an_error_of_the_checks_own_code_is_no_students(body, source, says):
    failed, line = failure(body, source), body.__code__.co_firstlineno
    found = failed.failure
    assert found.fault.startswith(tuple(f"tests/grader/test_faults.py:{n}: {says}" for n in range(line, line + 5))), (
        found.fault
    )
    assert found.message.startswith("The test could not judge what your code gave, and stopped with ")
    assert (found.kind, found.error) == (WRONG, "") and Failure.of_data(asdict(found)) == found
    assert failed.compared[0] == "raised", "hints are searched for with what was seen, as of a student's error"


# ---- in ranks ----


def drives(rank, world_size, double):
    return double(rank) + no_such_name  # noqa: F821


def drives_with_a_helper(rank, world_size, double):
    return helper(double, rank)


def drives_well(rank, world_size, double):
    return double(rank)


def drives_an_object(rank, world_size, shard):
    return shard().step(rank)


class Model:
    """Has a method of the same name."""

    def step(self):
        """Does nothing."""


@pytest.mark.parametrize(
    ("driver", "source", "own"),
    [
        (drives, DOUBLE, "NameError: name 'no_such_name' is not defined"),
        (drives_with_a_helper, DOUBLE, "TypeError: helper() takes 1 positional argument but 2 were given"),
        (drives_well, "def double(x):\n    return y", ""),
        (drives_well, "def double():\n    return 1", ""),
        (drives_an_object, "class Shard:\n    def step(self): pass", ""),
    ],
)
def test_in_a_rank_a_drivers_own_mistake_is_told_from_the_students(monkeypatch, driver, source, own):
    monkeypatch.setattr(places, "HIDDEN", {__file__: stage.OURS})  # as the checks of a lesson are

    def launches(double, *, rng):
        stage.run_ranks(driver, 1, (double,))

    line = f"tests/grader/test_faults.py:{driver.__code__.co_firstlineno}: {driver.__name__}, in a rank: "
    assert failure(launches, source).failure.fault == (f"{line}{own}" if own else "")
