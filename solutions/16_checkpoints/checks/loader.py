"""Exercise 7: the place in the data, which a checkpoint holds and other ranks go on from.

The driver makes the loaders of all ranks in one process, and hands a state on as JSON. The oracle cuts each epoch's
order into batches and those into ranks' shares, without a position that it keeps.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import expect_equal, fail
from autograder.checking.stage import run_ranks

LOADER = "16-ex7-loader"


@dataclass
class Run:
    """Samples that are dealt in legs, (world size, steps) each, one after the other; `seed` is the first leg's."""

    samples: int
    batch: int
    seed: int
    legs: list[tuple[int, int]]

    @property
    def case(self) -> str:
        """The run in words."""
        legs = ", then ".join(f"{steps} step{'s' * (steps != 1)} on {count}" for count, steps in self.legs)
        return f"{self.samples} samples in batches of {self.batch}: {legs} rank{'s' * (self.legs[-1][0] != 1)}"


@dataclass
class Leg:
    """What a leg's loaders did: each step's batches, rank by rank; the ranks' states afterwards, as JSON.

    changed: when the state that it began with, or one that was taken before its last step, changed; "" if none did.
    """

    batches: list[list[list[int]]]
    states: list[str]
    changed: str


def _deal_driver(rank, world_size, loader_class, runs):
    return [_deal(loader_class, run) for run in runs]


def _deal(loader_class, run: Run) -> list[Leg]:
    legs: list[Leg] = []
    for number, (count, steps) in enumerate(run.legs):
        # Each leg is handed the state of another rank, and a seed of its own, which only the first may use.
        text = legs[-1].states[number % len(legs[-1].states)] if legs else "null"
        given, seed = json.loads(text), run.seed + 17 * number
        loaders = [loader_class(run.samples, run.batch, rank, count, seed=seed, state=given) for rank in range(count)]
        batches, early, before = [], None, ""
        for step in range(steps):
            if step == steps - 1:
                early = loaders[0].state()
                before = json.dumps(early)
            batches.append([[int(sample) for sample in loader.next_batch()] for loader in loaders])
        changed = "with the next batch" if json.dumps(early) != before else ""
        states = [json.dumps(loader.state()) for loader in loaders]
        if json.dumps(early) != before:
            changed = changed or "when state() was called again"
        if json.dumps(given) != text:
            changed = changed or "in the loader that began with it"
        legs.append(Leg(batches, states, changed))
    return legs


def _global_batches(run: Run) -> Iterator[list[int]]:
    """The batches of epoch after epoch, without an end."""
    for epoch in itertools.count():
        generator = torch.Generator().manual_seed(run.seed * 1_000_003 + epoch)
        whole = torch.randperm(run.samples, generator=generator).numpy()
        for piece in np.array_split(whole, range(run.batch, run.samples, run.batch)):
            yield [int(sample) for sample in piece]


def _shares(batch: list[int], count: int) -> list[list[int]]:
    """Each rank's samples of a batch, dealt as cards are."""
    shares: list[list[int]] = [[] for _ in range(count)]
    for sample, share in zip(batch, itertools.cycle(shares), strict=False):
        share.append(sample)
    return shares


def _expect_dealt(loader_class, runs: list[Run]) -> None:
    """Every step of every leg deals the next global batch."""
    results = run_ranks(_deal_driver, 1, (loader_class, runs))[0]
    for run, legs in zip(runs, results, strict=True):
        _expect_batches(run, legs)


def _expect_batches(run: Run, legs: list[Leg]) -> None:
    """The batches of a run are the oracle's, step by step."""
    expected = _global_batches(run)
    want = [[_shares(next(expected), count) for _ in range(steps)] for count, steps in run.legs]
    got = [leg.batches for leg in legs]
    for number, (leg, right) in enumerate(zip(got, want, strict=True)):
        for step, (one, other) in enumerate(zip(leg, right, strict=True)):
            what = f"step {step + 1} of leg {number + 1}: the ranks' samples"
            expect_equal(run.case, one, other, what=what, evidence=got)


@check(LOADER, points=1.5)
def other_ranks_go_on_with_the_next_batch(Loader, *, rng):
    """Each step deals the next global batch, on one number of ranks and after a change to another, in every epoch."""
    _expect_dealt(
        Loader,
        [
            Run(24, 6, inputs.seed(rng), [(1, 9)]),
            Run(24, 6, inputs.seed(rng), [(3, 2), (2, 3), (6, 2)]),
            Run(40, 8, inputs.seed(rng), [(4, 3), (3, 4), (5, 5), (1, 2)]),
            Run(30, 5, inputs.seed(rng), [(2, 1), (4, 1), (7, 1), (3, 1), (2, 12)]),
            Run(24, 6, inputs.seed(rng), [(3, 4), (2, 4), (4, 1)]),
        ],
    )


@check(LOADER, points=0.75)
def the_last_batch_is_what_is_left(Loader, *, rng):
    """Where batches do not fill an epoch, its last one has the samples that are left, and some ranks may have none."""
    _expect_dealt(
        Loader,
        [
            Run(23, 6, inputs.seed(rng), [(3, 3), (2, 2), (4, 3)]),
            Run(13, 6, inputs.seed(rng), [(4, 3), (3, 3), (2, 4)]),
            Run(25, 8, inputs.seed(rng), [(2, 4), (3, 3), (5, 1), (3, 2)]),
            Run(5, 8, inputs.seed(rng), [(3, 2), (2, 2)]),
        ],
    )


@check(LOADER, points=0.75)
def states_are_small_and_alike(Loader, *, rng):
    """A state is equal on all ranks, fits JSON in 200 characters, and stays as it is when a loader goes on."""
    runs = [
        Run(60, 6, inputs.seed(rng), [(3, 2), (2, 3)]),
        Run(600, 6, inputs.seed(rng), [(4, 3), (3, 3)]),
    ]
    for run, legs in zip(runs, run_ranks(_deal_driver, 1, (Loader, runs))[0], strict=True):
        for leg in legs:
            expect_equal(run.case, leg.states, leg.states[:1] * len(leg.states), what="the list of the ranks' states")
            long = max(len(text) for text in leg.states)
            if long > 200:
                fail(f"a state has {long} characters as JSON, expected at most 200", run.case, "long")
            if leg.changed:
                fail(f"a state changed {leg.changed}", run.case, leg.changed)
        _expect_batches(run, legs)
