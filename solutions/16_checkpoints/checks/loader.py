"""Exercise 7: the place in the data, which a checkpoint holds and other ranks go on from.

The driver makes the loaders of all ranks in one process, and hands a state on as JSON. The oracle cuts each epoch's
order into batches and those into ranks' shares, without a position that it keeps.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from autograder.checks import inputs
from autograder.checks.cases import Call, at_most, fact, sentence
from autograder.checks.check import check

LOADER = "16-ex7-loader"
#: (world size, steps) of the loaders that follow each other.
Legs = list[tuple[int, int]]


@dataclass
class Dealt:
    """What the loaders dealt in each step, rank by rank, and what became of their states."""

    samples: Any = fact("the ranks' samples in step {}")
    equal: str = sentence()
    long: Any = fact("the number of characters of a state as JSON", seen=lambda count: count > 200)
    changed: str = sentence()


def _deal(loader_class: Any, samples: int, batch: int, seed: int, legs: Legs, other: int) -> Dealt:
    """Deal in legs. Each loader has the state of a rank of the leg before, as JSON. other: is added to the seed."""
    dealt: list = []
    text, found = "null", Dealt([], "", 0, "")
    for number, (count, steps) in enumerate(legs):
        given = [json.loads(text) for _ in range(count)]
        again = seed + other * number
        loaders = [loader_class(samples, batch, r, count, seed=again, state=given[r]) for r in range(count)]
        for _ in range(steps):
            early = loaders[0].state()
            before = json.dumps(early)
            dealt.append([[int(sample) for sample in loader.next_batch()] for loader in loaders])
            loaders[0].state()
            if json.dumps(early) != before:
                found.changed = "a state that state() has returned changes when its loader goes on"
        if [json.dumps(one) for one in given] != [text] * count:
            found.changed = "Loader changes the state that it was given"
        states = [json.dumps(loader.state()) for loader in loaders]
        found.equal = found.equal or ("" if len(set(states)) == 1 else "the states of the ranks are not equal")
        found.long = max(found.long, *map(len, states))
        text = states[number % count]
    found.samples = dealt
    return found


def _expected(samples: int, batch: int, seed: int, legs: Legs) -> list[list[list[int]]]:
    """Each step's shares, as cards are dealt, of the batches of epoch after epoch."""
    batches = _global_batches(samples, batch, seed)
    shares: list[list[list[int]]] = []
    for count in (count for count, steps in legs for _ in range(steps)):
        one = next(batches)
        shares.append([one[rank::count] for rank in range(count)])
    return shares


def _global_batches(samples: int, batch: int, seed: int) -> Iterator[list[int]]:
    for epoch in itertools.count():
        whole = torch.randperm(samples, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)).numpy()
        for piece in np.array_split(whole, range(batch, samples, batch)):
            yield [int(sample) for sample in piece]


def _together(found: Dealt, *_: Any) -> Dealt:
    """The samples of all ranks in a step, whichever rank got them: who deals them out wrongly pays elsewhere."""
    return replace(found, samples=[sorted(itertools.chain(*shares)) for shares in found.samples])


def _run(
    loader_class: Any,
    samples: int,
    batch: int,
    seed: int,
    legs: Legs,
    other: int = 0,
    alike: bool = True,
    **states: Any,
) -> Call:
    words = ", then ".join(f"{steps} step{'s' * (steps != 1)} on {count}" for count, steps in legs)
    name = f"{samples} samples in batches of {batch}: {words} rank{'s' * (legs[-1][0] != 1)}"
    gives = Dealt(_expected(samples, batch, seed, legs), **states)
    how: dict[str, Any] = {}
    if other or states or not alike:
        gives, how = _together(gives), {"sees": _together}
    return Call(_deal, loader_class, samples, batch, seed, legs, other, gives=gives, name=name, **how)


@check(LOADER, points=0.75)
def other_ranks_go_on_with_the_next_batch(Loader: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """Each step deals the next global batch, on one number of ranks and after a change to another."""
    yield _run(Loader, 24, 6, inputs.seed(rng), [(1, 4)])
    yield _run(Loader, 24, 6, inputs.seed(rng), [(3, 1), (2, 2), (6, 1)])
    yield _run(Loader, 40, 8, inputs.seed(rng), [(4, 1), (3, 2), (5, 1), (1, 1)])
    yield _run(Loader, 30, 5, inputs.seed(rng), [(2, 1), (4, 1), (7, 1), (3, 1), (2, 2)])


@check(LOADER, points=0.5)
def epochs_follow_each_other(Loader: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """After an epoch the next one follows at once, in its own order, also where the number of ranks changes."""
    yield _run(Loader, 24, 6, inputs.seed(rng), [(1, 9)], alike=False)
    yield _run(Loader, 24, 6, inputs.seed(rng), [(3, 2), (2, 3), (6, 2)], alike=False)
    yield _run(Loader, 24, 6, inputs.seed(rng), [(3, 4), (2, 4), (4, 1)], alike=False)


@check(LOADER, points=0.5)
def the_seed_of_the_state_counts(Loader: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """Loaders that go on with a state deal in the order of its seed, whatever their own `seed` is."""
    yield _run(Loader, 24, 6, inputs.seed(rng), [(3, 1), (2, 2), (6, 1)], other=17)
    yield _run(Loader, 40, 8, inputs.seed(rng), [(4, 2), (3, 2), (1, 1)], other=1)


@check(LOADER, points=0.5)
def the_last_batch_is_what_is_left(Loader: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """Where batches do not fill an epoch, its last one has the samples that are left, and some ranks may have none."""
    yield _run(Loader, 23, 6, inputs.seed(rng), [(3, 2), (2, 2)])
    yield _run(Loader, 13, 6, inputs.seed(rng), [(4, 2), (3, 1)])
    yield _run(Loader, 25, 8, inputs.seed(rng), [(2, 2), (3, 2)])
    yield _run(Loader, 5, 8, inputs.seed(rng), [(3, 1)])


@check(LOADER, points=0.5)
def states_stay_as_they_are(Loader: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """A state that a loader was given or has returned stays as it is when the loader goes on."""
    yield _run(Loader, 60, 6, inputs.seed(rng), [(3, 2), (2, 3)], changed="")
    yield _run(Loader, 40, 8, inputs.seed(rng), [(1, 2), (4, 2), (3, 1)], changed="")


@check(LOADER, points=0.25)
def states_are_small_and_alike(Loader: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """A state is equal on all ranks, and fits JSON in 200 characters."""
    right = {"equal": "", "long": at_most(200)}
    yield _run(Loader, 60, 6, inputs.seed(rng), [(3, 2), (2, 3)], **right)
    yield _run(Loader, 600, 6, inputs.seed(rng), [(4, 3), (3, 3)], **right)
