"""Exercise 6: a pipeline step, its numbers and its messages."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank, expect_close, fail
from autograder.checking.stage import run_ranks
from autograder.checks.pipeline.schedules import gpipe, one_f_one_b, peaks_of, random_schedule
from autograder.checks.pipeline.stages import Case, loss_of, make_case, unsplit

#: Of the loss and of gradients, which are of the order of 1. Float32 sums in another order differ by up to 8e-7 here.
GRADIENT_ERROR = 1e-5


def _cases(rng: np.random.Generator, n: int) -> list[Case]:
    """The usual schedules, then few micro-batches, and stages that go through them each in its own order."""
    late_first = [[(kind, 4 - m) if kind == "B" else (kind, m) for kind, m in mine] for mine in gpipe(n, 5)]
    # Before it takes the activation of F3, the last stage hands back three gradients.
    late_forward = [(kind, m) for kind, m in zip("FFFBBBFB", (0, 1, 2, 0, 1, 2, 3, 3), strict=True)]
    return [
        make_case(rng, "1F1B", one_f_one_b(n, 6), 6, (5,)),
        make_case(rng, "GPipe", gpipe(n, 4), 4, (2, 3), tokens=True),
        make_case(rng, "1F1B, stages whose output is not contiguous", one_f_one_b(n, 3), 3, (2, 3), transposed=True),
        make_case(rng, "GPipe, the last backward first", late_first, 5, (4,)),
        make_case(rng, "GPipe, but the last stage's last forward is late", [*gpipe(n, 4)[1:], late_forward], 4, (5,)),
        make_case(rng, "1F1B", one_f_one_b(n, 2), 2, (5,)),
        make_case(rng, "a random order", random_schedule(rng, n, 4, None, agreed=True), 4, (5,)),
        make_case(rng, "1F1B", one_f_one_b(n, 1), 1, (4,)),
    ]


def _drive(rank: int, world_size: int, step: Callable, cases: list[Case]) -> list[dict]:
    """Inside a rank: two calls for each case, the second into the gradients of the first."""
    outcomes = []
    for case in cases:
        stage, rows = case.build(rank), case.rows()
        dist.barrier()
        first = step(stage, rows, case.schedule, loss_of, case.hidden)
        log, peak, left, held = list(stage.probe.log), stage.probe.peak, stage.probe.alive, stage.probe.most_inputs
        dist.barrier()
        once = {name: p.grad.clone() for name, p in stage.params.items() if p.grad is not None}
        step(stage, case.rows(), case.schedule, loss_of, case.hidden)
        twice = {name: p.grad.clone() for name, p in stage.params.items() if p.grad is not None}
        pairs = [(t, a) for row, old in zip(rows, case.batch, strict=True) for t, a in zip(row, old, strict=True)]
        same = all(np.array_equal(t.detach().numpy(), a) for t, a in pairs)
        outcomes.append({
            "loss": first,
            "once": {name: g.numpy() for name, g in once.items()},
            "twice": {name: g.numpy() for name, g in twice.items()},
            "log": log,
            "peak": peak,
            "left": left,
            "held": held,
            "inputs": same and not any(t.requires_grad for row in rows for t in row),
        })  # fmt: skip
    dist.barrier()
    return outcomes


@check("11-ex6-pipeline-step", points=2.75)
def pipeline_equals_the_unsplit_model(pipeline_step, *, rng):
    """On 1 to 5 ranks a step runs its schedule, with the uncut model's loss and gradients; the batch stays as it is."""
    for world_size in (4, 2, 5, 1):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, (pipeline_step, cases))
        for c, case in enumerate(cases):
            outcomes = [mine[c] for mine in results]
            _expect_order(case, outcomes)
            _expect_numbers(case, outcomes)


@check("11-ex6-pipeline-step", points=0.75)
def backwards_let_go_of_what_they_used(pipeline_step, *, rng):
    """After a micro-batch's backward nothing that its forward saved or received is kept, only what was sent."""
    for world_size in (4, 2):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, (pipeline_step, cases))
        for c, case in enumerate(cases):
            outcomes = [mine[c] for mine in results]
            _expect_alive(case, outcomes)
            _expect_numbers(case, outcomes)


@check("11-ex6-pipeline-step", points=0.5)
def only_neighbors_get_messages(pipeline_step, *, rng):
    """Each activation and each gradient crosses its border once. There is no other message and no collective."""
    for world_size in (4, 1):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, (pipeline_step, cases))
        calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        if any(len(parts) != 2 * len(cases) + 2 for parts in calls):
            text = "pipeline_step called barrier: ranks need only their neighbors' messages"
            fail(text, count_of_ranks(world_size), "barrier")
        for c, case in enumerate(cases):
            _expect_wire(case, [parts[2 * c + 1] for parts in calls])
            _expect_numbers(case, [mine[c] for mine in results])


def _expect_order(case: Case, outcomes: list[dict]) -> None:
    """Each rank ran its schedule's entries in order."""
    logs = [[f"{kind} of {size}" for kind, size in outcome["log"]] for outcome in outcomes]
    for rank, got in enumerate(logs):
        want = [f"{kind} of {len(case.batch[m][0])}" for kind, m in case.schedule[rank]]
        if got != want:
            at = next((k for k, pair in enumerate(zip(got, want, strict=False)) if pair[0] != pair[1]), None)
            if at is None:
                text = f"rank {rank} ran {len(got)} entries, expected {len(want)}"
            else:
                text = f"entry {at} on rank {rank} was {got[at]} examples, expected {want[at]}"
            fail(text, case.name, [rank, *got])


def _expect_numbers(case: Case, outcomes: list[dict]) -> None:
    """Loss and gradients, after one step and after two, are the unsplit model's; the batch stays as it was."""
    loss, gradients = unsplit(case)
    last = len(outcomes) - 1
    for rank, outcome in enumerate(outcomes):
        if rank < last and outcome["loss"] is not None:
            text = f"rank {rank} returned {outcome['loss']!r}, expected None: only the last rank returns a loss"
            fail(text, case.name, "returned")
        for what, factor in (("once", 1), ("twice", 2)):
            when = " after two steps without zeroing" if factor == 2 else ""
            expect_gradients(case, rank, outcome[what], {name: factor * g for name, g in gradients[rank].items()}, when)
        if not outcome["inputs"]:
            text = f"pipeline_step changed a micro-batch on rank {rank}, or set its requires_grad"
            fail(text, case.name, "inputs")
    expect_loss(case, outcomes[last]["loss"], loss)


def expect_gradients(case: Case, rank: int, got: dict, want: dict, when: str = "") -> None:
    """One rank's gradients are those that are wanted, by the names of the parameters."""
    if set(got) != set(want):
        missing = sorted(set(want) - set(got))
        fail(f"on rank {rank} the parameters {missing} have no gradient", case.name, sorted(got))
    for name, gradient in want.items():
        label = f"the gradient of {name!r} on rank {rank}{when}"
        bound = GRADIENT_ERROR * max(1.0, float(np.max(np.abs(gradient))))
        expect_close(case.name, got[name], gradient, what=label, rtol=0.0, atol=bound)


def expect_loss(case: Case, got: object, want: float) -> None:
    """The last rank returned the loss."""
    if not isinstance(got, (int, float)):
        kind = type(got).__name__
        fail(f"the last rank returned {got!r} ({kind}), expected the loss, a float", case.name, kind)
    bound = GRADIENT_ERROR * max(1.0, abs(want))
    expect_close(case.name, got, np.array(want), what="the loss", rtol=0.0, atol=bound)


def _expect_alive(case: Case, outcomes: list[dict]) -> None:
    """No rank kept more activations alive than its schedule needs."""
    peaks = peaks_of(case.schedule)
    for rank, outcome in each_rank(case.name, outcomes, evidence=lambda o: [o["peak"], o["left"], o["held"]]):
        most = peaks[rank.rank]
        text = f"the activations of {outcome['peak']} micro-batches were alive, expected at most {most}"
        rank.expect(outcome["peak"] <= most, text)
        # One more: a variable may hold an input until the next entry begins.
        text = f"{outcome['held']} received activations were held at the same time, expected at most {most + 1}"
        rank.expect(outcome["held"] <= most + 1, text)


def _expect_wire(case: Case, calls: list[list]) -> None:
    """Activations to the right, gradients to the left, once each, in float32; no collective."""
    whole = 4 * math.prod(case.hidden) * sum(len(x) for x, _ in case.batch)
    last = len(calls) - 1
    for rank, mine in enumerate(calls):
        sent = {peer: sum(m.bytes for m in mine if m.is_send and m.peer == peer) for peer in range(last + 1)}
        if collective := [m.call for m in mine if m.is_collective]:
            fail(f"rank {rank} called {collective[0]}, which no stage needs", case.name, collective)
        for peer, nbytes in sent.items():
            want = whole if abs(peer - rank) == 1 else 0
            if nbytes != want:
                text = f"rank {rank} sent {nbytes} bytes to rank {peer}, expected {want}"
                fail(text, case.name, [rank, *sent.values()])
