"""Lesson 17, exercise 2: one training step on all ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import digits_that_differ, fail
from autograder.checks.capstone.common import (
    LOSS_ERROR,
    NORM_ERROR,
    NUMEL,
    corpus_of,
    equip,
    expect_described,
    expect_parameters,
    expect_refused,
    flat_parameters,
    run_ranks,
    train_alone,
    try_values,
)


def _drive_trainer(rank: int, world_size: int, trainer_class: Any, seed: int, cases: list[tuple]) -> list[dict]:
    """Inside a rank: for each (micro_batches, lr, factors) a trainer and some steps."""
    names = equip(trainer_class)
    build, seeds = names["build_model"], []
    names["build_model"] = lambda number: seeds.append(number) or build(number)
    outcomes = []
    for micro_batches, lr, factors in cases:
        dist.barrier()
        seeds.clear()
        trainer = trainer_class(rank, world_size, seed, lr, micro_batches)
        rows, shapes = [], []
        got = {"seeds": list(seeds), "numel": trainer.numel, "start": flat_parameters(trainer.model), "rows": rows}
        trainer.model.register_forward_pre_hook(lambda _, inputs, shapes=shapes: shapes.append(tuple(inputs[0].shape)))
        for step, factor in factors.items():
            trainer.gradients(step + 5)  # of a step that is then not made
            shapes.clear()
            dist.barrier()
            loss, grad_norm = trainer.gradients(step)
            unchanged = not rows or np.array_equal(rows[-1]["parameters"], flat_parameters(trainer.model))
            norm, digest = trainer.update(factor)
            dist.barrier()
            row = {"loss": loss, "grad_norm": grad_norm, "norm": norm, "digest": digest, "shapes": list(shapes)}
            row |= {"parameters": flat_parameters(trainer.model), "unchanged": unchanged}
            rows.append(row)
        got["lr"] = trainer.optimizer.param_groups[0]["lr"]
        got["corpus"] = trainer.corpus.numpy().copy()
        outcomes.append(got)
    return outcomes


@check("17-ex2-trainer")
def steps_follow_one_process(Trainer, make_corpus, *, rng):  # noqa: N803
    """Loss, gradient norm and parameters after each step are those of one process on all batches."""
    seed, usual = int(rng.integers(100)), {1: 1.0, 2: 3.0, 3: 1.0}
    corpus = corpus_of(make_corpus, seed)
    plan = [(4, [(1, 3e-3, usual), (4, 2e-3, usual)]), (3, [(2, 3e-3, usual)]), (1, [(2, 3e-3, usual)])]
    plan[-1][1].append((1, 3e-3, {1: 1.0, 2: math.inf}))
    for world_size, cases in plan:
        results = run_ranks(_drive_trainer, world_size, (Trainer, seed, cases))
        for number, (micro_batches, lr, factors) in enumerate(cases):
            case = f"N = {world_size}, {micro_batches} micro-batches"
            _expect_trainer(case, [mine[number] for mine in results], corpus, seed, micro_batches, lr, factors)


def _expect_trainer(case, ours, corpus, seed, micro_batches, lr, factors) -> None:
    finite = all(map(math.isfinite, factors.values()))
    want = train_alone(corpus, len(ours), len(factors), seed, lr, factors)
    for rank, mine in enumerate(ours):
        if mine["seeds"] != [seed + rank]:
            fail(
                f"rank {rank} built its model under {mine['seeds']}, expected seed + rank",
                case,
                [number - seed for number in mine["seeds"]],
            )
        if mine["numel"] != NUMEL:
            fail(f"numel is {mine['numel']}", case, mine["numel"])
        if not np.array_equal(mine["start"], want["parameters"][0]):
            fail(f"rank {rank} does not start with rank 0's parameters", case, ["start", rank])
        if not np.array_equal(mine["corpus"], np.resize(corpus[:64], len(mine["corpus"]))):
            fail(f"rank {rank}'s corpus is not make_corpus(seed, …)", case, ["corpus", rank])
    for place in range(len(factors)):
        rows = [mine["rows"][place] for mine in ours]
        where = f"{case}, step {place + 1}"
        losses, norms = [row["loss"] for row in rows], [row["grad_norm"] for row in rows]
        if not all(isinstance(value, float) for value in losses + norms):
            fail("loss and grad_norm should be floats", where, [type(v).__name__ for v in (losses[0], norms[0])])
        if len(set(losses)) > 1 or len(set(norms)) > 1:
            fail(f"the ranks report other losses or norms: {losses}, {norms}", where, [losses, norms])
        if abs(losses[0] - want["losses"][place]) > LOSS_ERROR:
            one, other = digits_that_differ(losses[0], want["losses"][place])
            fail(f"the loss is {one}, one process has {other}", where, losses[0])
        if abs(norms[0] / want["grad_norms"][place] - 1) > NORM_ERROR:
            one, other = digits_that_differ(norms[0], want["grad_norms"][place])
            fail(f"the norm of the mean gradient is {one}, one process has {other}", where, norms[0])
        for rank, row in enumerate(rows):
            if not row["unchanged"]:
                fail("gradients changed the parameters", where, "changed")
            if row["shapes"] != [(4 // micro_batches, 16)] * micro_batches:
                fail(f"rank {rank}'s model saw batches of {row['shapes']}", where, [list(s) for s in row["shapes"]])
            if finite or place == 0:
                expect_parameters(where, rank, row["parameters"], want["parameters"][place + 1])
            expect_described(where, rank, row["parameters"], row["norm"], row["digest"])
    rates = [mine["lr"] for mine in ours]
    if rates != [lr] * len(ours):
        fail(f"afterwards the learning rate is {rates[0]}, not {lr}", case, rates)


@check("17-ex2-trainer")
def steps_send_the_gradient_once(Trainer, *, rng):  # noqa: N803
    """One reduce-scatter and one all-gather a step; everything else is small."""
    cases = [(4, 3e-3, {1: 1.0, 2: 1.0}), (1, 3e-3, {1: 1.0})]
    results = run_ranks(_drive_trainer, 3, (Trainer, 0, cases))
    for rank in range(3):
        parts = results.ledger.of(rank).between_barriers()
        sent = [[m.call for m in part if m.bytes > 1024] for part in (parts[2], parts[4], parts[7])]
        kinds = [sorted(call.split("_single")[0].split("_tensor")[0] for call in calls) for calls in sent]
        for calls, kind in zip(sent, kinds, strict=True):
            if len(kind) != 2 or not kind[0].startswith("all_gather") or not kind[1].startswith("reduce_scatter"):
                fail(f"rank {rank} sent in one step: {calls}", "communication of a step", kinds)


@check("17-ex2-trainer")
def trainer_refuses_odd_micro_batches(Trainer, *, rng):  # noqa: N803
    """A number that does not divide the batch is a ValueError that names it, on every rank, before any message."""
    results = run_ranks(try_values, 2, (Trainer, [3, 0, -2, 8], "trainer"))
    expect_refused(results, "micro_batches")
