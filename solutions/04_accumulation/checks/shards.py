"""Lesson 04, exercise 2: a data set dealt to the ranks, as torch's DistributedSampler deals it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data.distributed as sampling

from autograder.checking.check import check
from autograder.checking.expect import fail
from autograder.checking.stage import run_ranks


class _SamplerUsedError(Exception):
    """The submission used the sampler itself."""


@dataclass
class Dealt:
    """What one call of shard_indices returned or raised."""

    got: Any = None
    error: tuple[str, str] | None = None
    sampler: bool = False  # was the sampler used?
    random: str = ""  # what became of torch's global random state; "" if nothing


def _deal(rank: int, world_size: int, function: Any, calls: list[dict]) -> list[Dealt]:
    """Inside a rank: one result for each call, while every use of the sampler raises an error and is recorded."""
    used = []

    def forbidden(*args: Any, **kwargs: Any) -> None:
        used.append(True)
        raise _SamplerUsedError("DistributedSampler was used")

    # The class itself stays as it is: to import it or to read its signature is no mistake.
    sampling.DistributedSampler.__init__ = forbidden
    sampling.DistributedSampler.__iter__ = forbidden
    dealt = []
    for call in calls:
        torch.rand(())  # the state is not the one that a seed begins with
        before, seed, one = torch.get_rng_state(), torch.initial_seed(), Dealt()
        try:
            one.got = _list_of_ints(function(**call))
        except ValueError as error:
            one.error = (type(error).__name__, str(error))
        except _SamplerUsedError:
            pass
        one.sampler, one.random = bool(used), _became(before, seed)
        dealt.append(one)
    return dealt


def _became(before: torch.Tensor, seed: int) -> str:
    """What became of torch's global random state since it was `before`, with this initial seed; "" if nothing."""
    now = torch.get_rng_state()
    if torch.equal(before, now):
        return ""
    if torch.initial_seed() != seed:
        return "seeded"
    return "set back" if torch.equal(now, torch.Generator().manual_seed(seed).get_state()) else "drawn from"


def _list_of_ints(got: Any) -> Any:
    """A list of Python ints as it is; for anything else, a phrase that says what it is."""
    if isinstance(got, list) and all(type(entry) is int for entry in got):
        return got
    if isinstance(got, list):
        odd = next(entry for entry in got if type(entry) is not int)
        return f"a list with a {type(odd).__name__} in it"
    return f"a {type(got).__name__}"


def _calls(rng: np.random.Generator, count: int) -> list[dict]:
    """Drawn calls with small lengths, so that examples are repeated and dropped in every way that can occur."""
    calls = [
        {
            "length": int(rng.integers(0, 24)),
            "world_size": (n := int(rng.integers(1, 9))),
            "rank": int(rng.integers(0, n)),
            "epoch": int(rng.integers(0, 50)),
            "seed": int(rng.integers(0, 50)),
            "shuffle": bool(rng.integers(0, 3)),
            "drop_last": bool(rng.integers(0, 2)),
        }
        for _ in range(count)
    ]
    for call in calls[: count // 4]:  # far fewer examples than ranks: the order repeats more than once
        call["length"] = int(rng.integers(0, max(1, call["world_size"] // 2)))
    return calls


def _say(call: dict) -> str:
    return ", ".join(f"{name} = {value}" for name, value in call.items())


def _sampled(call: dict) -> list[int]:
    """The indices that torch's sampler deals."""
    given = {name: call[name] for name in ("rank", "shuffle", "seed", "drop_last") if name in call}
    sampler = sampling.DistributedSampler(range(call["length"]), num_replicas=call["world_size"], **given)
    sampler.set_epoch(call["epoch"])
    return list(sampler)


def _expect_dealt(function: Any, calls: list[dict]) -> None:
    [dealt] = run_ranks(_deal, 1, (function, calls))
    _expect_indices(calls, dealt)


def _expect_indices(calls: list[dict], dealt: list[Dealt]) -> None:
    """Each call has given the sampler's list."""
    evidence = [str(one.error or one.got) for one in dealt[:40]]
    for call, one in zip(calls, dealt, strict=True):
        if one.sampler:
            fail("DistributedSampler itself was used: write its rules in your own code", "sampler", "sampler")
        if one.error:
            fail(f"shard_indices raised {one.error[0]}: {one.error[1]}", _say(call), evidence, one.error[0])
        if isinstance(one.got, str):
            fail(f"shard_indices returned {one.got}, expected a list of ints", _say(call), evidence)
        expected = _sampled(call)
        if len(one.got) != len(expected):
            fail(f"shard_indices returned {len(one.got)} indices, expected {len(expected)}", _say(call), evidence)
        if one.got != expected:
            at = next(i for i, pair in enumerate(zip(one.got, expected, strict=True)) if pair[0] != pair[1])
            fail(f"entry {at} is {one.got[at]}, but {expected[at]} in the sampler's list", _say(call), evidence)


@check("04-ex2-shard-indices", points=2.5)
def shards_are_those_of_the_sampler(shard_indices, *, rng):
    """The list is, index by index, the one that torch's DistributedSampler gives, for many drawn calls."""
    plain = [
        {"length": 12, "rank": 1, "world_size": 4, "epoch": 0, "shuffle": False},
        {"length": 10, "rank": 2, "world_size": 4, "epoch": 0, "shuffle": False},
        {"length": 10, "rank": 1, "world_size": 4, "epoch": 0, "shuffle": False, "drop_last": True},
        {"length": 12, "rank": 1, "world_size": 4, "epoch": 0},
        {"length": 12, "rank": 1, "world_size": 4, "epoch": 5, "seed": 3},
        {"length": 12, "rank": 1, "world_size": 4, "epoch": 0, "seed": 3},
        {"length": 12, "rank": 1, "world_size": 4, "epoch": 2, "seed": -9},
        {"length": 10, "rank": 3, "world_size": 4, "epoch": 2, "seed": 7},
        {"length": 10, "rank": 3, "world_size": 4, "epoch": 2, "seed": 7, "drop_last": True},
        {"length": 2, "rank": 4, "world_size": 7, "epoch": 1},
        {"length": 1009, "rank": 2, "world_size": 3, "epoch": 4, "seed": 11},
    ]
    _expect_dealt(shard_indices, plain + _calls(rng, 400))


@check("04-ex2-shard-indices", core=True)
def shards_are_dealt_without_side_effects(shard_indices, *, rng):
    """DistributedSampler is not used, and torch's global random state does not change."""
    calls = _calls(rng, 20)
    [dealt] = run_ranks(_deal, 1, (shard_indices, calls))
    for call, one in zip(calls, dealt, strict=True):
        if one.sampler:
            fail("DistributedSampler itself was used: write its rules in your own code", "sampler", "sampler")
        if one.random:
            fail(f"torch's global random state was {one.random}", _say(call), [one.random, str(one.got)])
    _expect_indices(calls, dealt)


@check("04-ex2-shard-indices", points=0.5)
def shards_refuse_what_cannot_be_dealt(shard_indices, *, rng):
    """A rank outside 0…N−1, an N below 1 and a negative length raise a ValueError that names the argument."""
    right = {"length": 10, "rank": 1, "world_size": 4, "epoch": 0}
    tried = [  # no name: nothing is wrong
        ({"rank": 4}, "rank"),
        ({"rank": -1}, "rank"),
        ({"rank": 9, "drop_last": True}, "rank"),
        ({"rank": 3}, ""),
        ({"world_size": 0, "rank": 0}, "world_size|rank"),
        ({"world_size": -2, "rank": 0}, "world_size|rank"),
        ({"length": -1}, "length"),
        ({"length": 0}, ""),
        ({"length": -4, "shuffle": False, "rank": 0}, "length"),
        ({"length": 0, "rank": 4}, "rank"),
        ({"length": 0, "world_size": 0, "rank": 0}, "world_size|rank"),
    ]
    calls = [right | change for change, _ in tried]
    [dealt] = run_ranks(_deal, 1, (shard_indices, calls))
    raised = [one.error is not None for one in dealt]
    for call, (change, word), one in zip(calls, tried, dealt, strict=True):
        if not word:
            _expect_indices([call], [one])
            continue
        if one.error is None:
            fail("nothing was raised, expected a ValueError", _say(change), ["nothing raised", raised, str(one.got)])
        if not re.search(word, one.error[1]):
            text = f"the ValueError should name {word.split('|')[0]}, but it says {one.error[1]!r}"
            fail(text, _say(change), "unnamed")
