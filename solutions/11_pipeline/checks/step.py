"""Exercise 6: a pipeline step, its numbers and its messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograder.checks.cases import ANYTHING, Case, at_most, close, fact, sentence
from autograder.checks.check import check

from .schedules import delayed, gpipe, one_f_one_b, peaks_of, random_schedule
from .stages import Pipeline, loss_of, make_pipeline, unsplit

#: Losses and gradients are of the order of 1. Float32 sums in another order differ by up to 8e-7 here.
ERROR = 1e-5


@dataclass
class Step:
    """What one rank did in one step or more."""

    entries: Any = fact("the list of entries that run")
    loss: Any = fact("what pipeline_step returns")
    missing: str = sentence()
    swapped: str = sentence()
    gradients: Any = fact("the gradient of {}")
    peak: Any = fact("the largest number of micro-batches whose activations are kept")
    left: Any = fact("after the step, the number of micro-batches whose activations are kept")
    inputs: Any = fact("the largest number of received activations that are held")


def _entry(kind: str, rows: int) -> str:
    return f"{kind} with {rows} row{'s' * (rows > 1)}"


def _swapped(log: list[tuple[str, int]], weights: list[int]) -> str:
    """Which micro-batches W takes, if all of them come after the last forward and in another order than `weights`."""
    last = max((k for k, (kind, _) in enumerate(log) if kind == "F"), default=0)
    found = [size for kind, size in log[last:] if kind == "W"]
    text = f"the entries W take the micro-batches with {found} rows in this order, expected {weights}"
    return text if sorted(found) == sorted(weights) and found != weights else ""


def _drive(rank: int, world_size: int, step: Callable, pipeline: Pipeline, steps: int) -> Step:
    stage = pipeline.build(rank)
    for _ in range(steps):
        loss = step(stage, pipeline.rows(), pipeline.schedule, loss_of, pipeline.hidden)
    probe, split = stage.probe, ("W", 0) in pipeline.schedule[rank]
    # In a whole backward the two gradients come in any order, and only that of the weights comes on all ranks.
    entries = [_entry(k if split or k == "F" else "B", size) for k, size in probe.log if split or k != "B"]
    gradients = {name: p.grad for name, p in stage.params.items() if p.grad is not None}
    missing = [name for name in stage.params if name not in gradients]
    text = f"there is no gradient of {missing[0]!r}" if missing else ""
    swapped = _swapped(probe.log, [len(pipeline.batch[m][0]) for kind, m in pipeline.schedule[rank] if kind == "W"])
    return Step(entries, loss, text, swapped, gradients, probe.peak, probe.alive, probe.most_inputs)


def _right(pipeline: Pipeline, steps: int) -> list[Step]:
    """What each rank does."""
    loss, gradients = unsplit(pipeline)
    sizes, last = [len(x) for x, _ in pipeline.batch], len(gradients) - 1
    right = []
    for rank, (row, of_rank) in enumerate(zip(pipeline.schedule, gradients, strict=True)):
        # Where backwards are in two parts, the first one has nothing to compute on stage 0.
        split = ("W", 0) in row and rank == 0
        entries = [_entry(kind, sizes[m]) for kind, m in row if not (split and kind == "B")] * steps
        summed = {name: _near(steps * g) for name, g in of_rank.items()}
        most = peaks_of([row])[0]
        # One input more: a variable may hold one until the next entry begins.
        kept = (at_most(most, least=1), 0, at_most(most + 1) if rank else ANYTHING)
        right.append(Step(entries, _near(loss) if rank == last else None, "", "", summed, *kept))
    return right


def _near(numbers: Any) -> close:
    return close(numbers, atol=ERROR * max(1.0, float(np.max(np.abs(numbers)))))


def _case(name: str, step: Callable, pipeline: Pipeline, *facts: str, steps: int = 1, **more: Any) -> Case:
    """These facts of a pipeline's step are as they should be."""
    right = _right(pipeline, steps)
    expect = [Step(**{name: getattr(one, name) for name in facts}) for one in right]
    name = f"{name}, {len(pipeline.batch)} micro-batches" + (f", {steps} steps without zeroing" if steps > 1 else "")
    return Case(name, len(right), _drive, (step, pipeline, steps), expect=expect, **more)


@check("11-ex6-pipeline-step", points=2)
def gradients_are_those_of_the_unsplit_model(pipeline_step, *, rng):
    """A step on 1, 2 and 4 ranks runs its schedule of F and B in its order, with the uncut model's gradients."""
    # Before it takes the activation of F3, the last stage hands back three gradients.
    late = [(kind, m) for kind, m in zip("FFFBBBFB", (0, 1, 2, 0, 1, 2, 3, 3), strict=True)]
    for n in (4, 2, 1):
        some = random_schedule(rng, n, 4, None, agreed=True)
        pipelines = {
            "1F1B": make_pipeline(rng, one_f_one_b(n, 6)),
            "GPipe of tokens": make_pipeline(rng, gpipe(n, 4), (2, 3), tokens=True),
            "a random order": make_pipeline(rng, some),
            "GPipe, but the last stage's last forward is late": make_pipeline(rng, [*gpipe(n, 4)[1:], late]),
        }
        for name, pipeline in pipelines.items():
            yield _case(name, pipeline_step, pipeline, "entries", "missing", "gradients")


@check("11-ex6-pipeline-step", points=0.75)
def weight_gradients_come_with_w(pipeline_step, *, rng):
    """Where the schedule has W, B computes the gradient of the input alone, and W those of the weights."""
    # The last stage has the first W: where W is an error, it is that stage's, whichever rank the machine lets run.
    for late in ([*rng.integers(1, 4, 2), 0], rng.integers(0, 4, 2)):
        schedule = delayed(one_f_one_b(len(late), 4), [int(k) for k in late])
        pipeline = make_pipeline(rng, schedule, sizes=[2] * 4)
        yield _case("1F1B with W", pipeline_step, pipeline, "entries", "missing", "gradients")


@check("11-ex6-pipeline-step", points=0.25)
def weight_gradients_come_in_any_order(pipeline_step, *, rng):
    """Entries W may come in another order than the B before them: each W works on its own micro-batch."""
    # Sizes tell micro-batches apart; where they are equal, what is another micro-batch's still fits.
    for n, sizes in ((2, [2] * 4), (3, [])):
        turned = [[("W", int(m)) for m in np.roll(range(4), rng.integers(1, 4))] for _ in range(n)]
        schedule = [row + last for row, last in zip(one_f_one_b(n, 4), turned, strict=True)]
        pipeline = make_pipeline(rng, schedule, sizes=sizes)
        yield _case("1F1B, then W in another order", pipeline_step, pipeline, "missing", "gradients", "swapped")


@check("11-ex6-pipeline-step", points=0.5)
def the_last_rank_returns_the_loss(pipeline_step, *, rng):
    """The last rank returns the mean over all examples, the others None."""
    for n in (3, 1):
        yield _case("1F1B", pipeline_step, make_pipeline(rng, one_f_one_b(n, 4)), "loss")


@check("11-ex6-pipeline-step", points=0.25)
def gradients_are_added_up(pipeline_step, *, rng):
    """A second step adds to the gradients of the first."""
    pipeline = make_pipeline(rng, one_f_one_b(2, 3), sizes=[2] * 3)
    yield _case("1F1B", pipeline_step, pipeline, "missing", "gradients", steps=2)


@check("11-ex6-pipeline-step", points=0.5)
def backwards_let_go_of_what_they_used(pipeline_step, *, rng):
    """After a micro-batch's backward nothing that its forward saved or received is kept, only what was sent."""
    for n in (4, 2):
        yield _case("1F1B", pipeline_step, make_pipeline(rng, one_f_one_b(n, 6)), "peak", "left", "inputs")


@check("11-ex6-pipeline-step", points=0.5)
def only_neighbors_get_messages(pipeline_step, *, rng):
    """Each activation and each gradient crosses its boundary once. There is no other message and no collective."""
    for n in (3, 1):
        pipeline = make_pipeline(rng, one_f_one_b(n, 5))
        whole = 4 * math.prod(pipeline.hidden) * sum(len(x) for x, _ in pipeline.batch)
        yield _case("1F1B", pipeline_step, pipeline, judge=_expect_wire(n, whole))


def _expect_wire(n: int, whole: int) -> Callable:
    """Activations to the right, gradients to the left, `whole` bytes each; no collective."""

    def judge(rank: int, parts: list) -> str:
        sent = [message for part in parts for message in part]
        if collective := [m.call for m in sent if m.is_collective]:
            return f"rank {rank} called {collective[0]}, which no stage needs"
        for peer in range(n):
            nbytes = sum(m.bytes for m in sent if m.is_send and m.peer == peer)
            if nbytes != (want := whole if abs(peer - rank) == 1 else 0):
                return f"rank {rank} sent {nbytes} bytes to rank {peer}, expected {want}"
        return ""

    return judge
