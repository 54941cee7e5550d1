"""What travels into the jail next to a submission: no oracle, neither as a method of a record nor as a function."""

from __future__ import annotations

import ast
import functools
import inspect
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from autograder import checks
from autograder.checks import check
from autograder.grade.jail import handles, record_methods
from autograder.lesson.notebook import natural
from tests.helpers.modules import import_checks

ring = checks.module("13_context", "ring")

#: What these are called with runs where the submission does.
SENDERS = ("call_inside", "run_ranks", "run_recorded", "Case", "Call")


def sent_from(module: Any) -> Iterator[Any]:
    """The functions and classes of a module of checks that travel into the jail, as its calls name them."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in SENDERS:
            for argument in node.args[:3]:
                thing = getattr(module, argument.id, None) if isinstance(argument, ast.Name) else None
                if isinstance(thing, (FunctionType, type)):
                    yield thing


def exercises(module: str) -> list[list]:
    """The exercises that a module's checks grade, in an order that can be compared."""
    return [natural(one.exercise) for (name, _), one in check.REGISTERED.items() if name == module]


@functools.cache
def all_sent() -> list[tuple[str, Any, record_methods.WhatTravels]]:
    modules = import_checks()
    return [
        (module.__name__, thing, record_methods.WhatTravels(thing)) for module in modules for thing in sent_from(module)
    ]


def is_oracle(thing: Any) -> bool:
    return "oracle" in thing.__name__ or (inspect.getdoc(thing) or "").startswith("The oracle")


def test_much_is_sent_and_oracles_are_found():
    assert len(all_sent()) > 100
    found = {one.__name__ for module in import_checks() for one in vars(module).values() if inspect.isfunction(one)
             and is_oracle(one)}  # fmt: skip
    assert {"_oracle", "deal"} <= found


def test_an_oracle_travels_only_with_the_test_of_a_later_exercise():
    """No process has seen a later exercise's test when an earlier one is tested (`run_cells`)."""
    for module, thing, sent in all_sent():
        for oracle in filter(is_oracle, sent.functions):
            of_test, of_oracle = exercises(module), exercises(oracle.__module__)
            assert oracle.__module__ != module, f"{module}.{thing.__name__} carries {oracle.__name__}"
            assert of_oracle and max(of_oracle) < min(of_test), f"{module}.{thing.__name__} carries {oracle.__name__}"


@pytest.fixture(scope="module")
def given():
    return ring.even(np.random.default_rng(0), 3)["12 positions, zigzag"]


def test_a_record_travels_without_what_it_knows_of_its_answer(given):
    """`of` deals the tensors out there; `forward` and `gradients` are called outside, and call the oracles."""
    worker, args = pickle.loads(handles.pack((ring._forward, (None, given)))[0])
    there = args[1]
    assert not {"forward", "gradients"} & set(dir(there)) and hasattr(given, "forward")
    assert "attention" not in worker.__globals__ and "attention" not in type(there).of.__globals__
    own, where = there.of(1)
    assert len(own) == 4 and len(where) == 3
    assert (type(there).__qualname__, type(there).__module__) == ("Sequence", ring.__name__)
    assert there.shards == given.shards


@dataclass
class Fraction:
    """A record with a method that calls another one."""

    over: int

    def as_float(self) -> float:
        return self.top() / self.over

    def top(self) -> int:
        return 1

    def answer(self) -> int:
        return 0


for part in (Fraction, Fraction.as_float, Fraction.top):
    part.__module__ = "autograder.checks.made_up"


def test_what_a_kept_method_calls_is_kept():
    """A driver that asks for the number needs `top` as well, which only `as_float` names."""

    def drive(case):
        return case.as_float()

    drive.__module__ = "autograder.checks.made_up"
    sent = record_methods.WhatTravels((drive, Fraction(3)))
    kept = set(dir(sent.lighter(Fraction)))
    assert {"as_float", "top"} <= kept and "answer" not in kept


def test_without_code_a_record_is_whole(given):
    """Code that has been sent before may call any of its methods."""
    assert record_methods.WhatTravels(given).lighter(ring.Sequence) is ring.Sequence
