"""No check compares with what the answer was given: an answer can change its arguments, also those outside a jail.

Each check that calls answers directly is tried with the lesson's own, whose arguments and results are then all made the
same wrong number. It must fail, unless it does not look at numbers.
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

import numpy as np
import pytest
import torch

import ranks
from autograder.checks import check
from autograder.lesson import notebook
from tests.helpers.modules import import_checks

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

#: Checks of something besides the numbers: whether they move, where they lie, what they leave behind.
NOT_OF_NUMBERS = {
    "adam_moves_without_a_gradient",
    "each_rank_gets_every_nth",  # compared with what one rank gets
    "last_boxes_may_be_empty",
    "main_gradients_are_float32",
    "no_cast_does_the_work",
    "one_gradient_is_alive",
    "the_generator_stands_where_it_would",
    "the_global_generator_stays",
    "the_name_is_the_others",
}


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
    if type(value) in (int, float) or isinstance(value, np.number):
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
    import_checks()
    passed, space = [], notebook.functions(lesson)
    for (_, name), one in list(check.REGISTERED.items()):
        if one.lesson != lesson:
            continue
        body = inspect.unwrap(one.run)
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
