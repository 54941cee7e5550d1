"""No check compares with what the answer was given: an answer can change its arguments, also those outside a jail.

Each check that calls answers directly is tried with the lesson's own, whose arguments and results are then all made the
same wrong number. It must fail, unless it does not look at numbers.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from typing import Any

import numpy as np
import pytest
import torch

import ranks
from autograder import checks
from autograder.checking import check
from autograder.lessons import notebook

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

#: Checks of something besides the numbers: what is refused, and what is not.
NOT_OF_NUMBERS = {"a_stage_refuses_what_makes_no_sense"}


class OnRanksError(BaseException):
    """A check starts ranks, whose arguments do not come back."""


def spoiled(value: Any, number: float, in_place: bool = False, depth: int = 0) -> Any:
    """A value with this number in place of all others, or 0 where it is no float. in_place: as far as that goes."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        found = value if in_place and value.flags.writeable else value.copy()
        found[...] = number if value.dtype.kind == "f" else 0
        return found
    if isinstance(value, torch.Tensor):
        found = value.detach() if in_place else value.detach().clone()
        return found.fill_(number if value.is_floating_point() else 0)
    if type(value) in (int, float):
        return type(value)(0)
    if depth < 6 and isinstance(value, (list, dict)):
        found = value if in_place else copy.copy(value)
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            found[key] = spoiled(value[key], number, in_place, depth + 1)
        return found
    if depth < 6 and type(value) is tuple:
        return tuple(spoiled(one, number, in_place, depth + 1) for one in value)
    return value


def spoiling(function: Any, number: float, count: list[int]) -> Any:
    """A function that spoils its arguments and what it returns; `count` gets one for each result that is now wrong."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        right = function(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        wrong = spoiled(right, number)
        count.append(repr(wrong) != repr(right))
        for one in (*args, *kwargs.values()):
            spoiled(one, number, in_place=True)
        return wrong

    return call


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lesson", notebook.lessons())
def test_spoiled_arguments_do_not_make_spoiled_results_right(lesson, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise OnRanksError

    monkeypatch.setattr(ranks, "run", refuse)
    package = checks.module(lesson).__name__
    passed = []
    for module, name in list(check.REGISTERED.items()):
        if module != package and not module.startswith(f"{package}."):
            continue
        body = inspect.unwrap(getattr(importlib.import_module(module), name))
        space = notebook.functions(lesson)
        names = [p.name for p in inspect.signature(body).parameters.values() if p.kind is not p.KEYWORD_ONLY]
        for number in (0.0, float("nan")):
            count: list[int] = []
            answers = [
                spoiling(space[one], number, count) if inspect.isfunction(space[one]) else space[one] for one in names
            ]
            try:
                failure = check.attempt(body, tuple(answers), 7)
            except OnRanksError:
                continue
            if failure is None and any(count) and name not in NOT_OF_NUMBERS:
                passed.append(name)
    assert not passed
