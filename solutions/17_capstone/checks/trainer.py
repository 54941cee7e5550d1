"""Lesson 17, exercise 2: one training step on all ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import each_rank, expect_close, expect_equal, expect_type

from .common import (
    LOSS_ERROR,
    NORM_ERROR,
    NUMEL,
    corpus_of,
    equip,
    expect_described,
    expect_parameters,
    flat_parameters,
    run_ranks,
    train_alone,
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
            own = [float(p.grad.norm()) for p in trainer.model.parameters() if p.grad is not None]
            unchanged = not rows or np.array_equal(rows[-1]["parameters"], flat_parameters(trainer.model))
            norm, digest = trainer.update(factor)
            dist.barrier()
            row = {"loss": loss, "grad_norm": grad_norm, "norm": norm, "digest": digest, "shapes": list(shapes)}
            row["own"] = float(np.linalg.norm(own))  # of the gradients that this rank's parameters hold
            row |= {"parameters": flat_parameters(trainer.model), "unchanged": unchanged}
            rows.append(row)
        got["lr"] = trainer.optimizer.param_groups[0]["lr"]
        got["corpus"] = trainer.corpus.numpy().copy()
        outcomes.append(got)
    return outcomes


@check("17-ex2-trainer", points=4)
def steps_follow_one_process(Trainer, *, rng):
    """Loss, gradient norm and parameters after each step are those of one process on all batches."""
    seed, usual = int(rng.integers(100)), {1: 1.0, 2: 3.0, 3: 1.0}
    corpus = corpus_of(seed)
    plan = [(4, [(1, 3e-3, usual), (4, 2e-3, usual)]), (3, [(2, 3e-3, usual)]), (1, [(2, 3e-3, usual)])]
    plan[-1][1].append((1, 3e-3, {1: 1.0, 2: math.inf}))
    for world_size, cases in plan:
        results = run_ranks(_drive_trainer, world_size, (Trainer, seed, cases))
        for number, (micro_batches, lr, factors) in enumerate(cases):
            case = f"N = {world_size}, {micro_batches} micro-batches"
            _expect_trainer(case, [mine[number] for mine in results], corpus, seed, micro_batches, lr, factors)


def _expect_trainer(case, ours, corpus, seed, micro_batches, lr, factors) -> None:
    """All ranks start alike, make the oracle's steps, and leave the learning rate as it was."""
    finite = all(map(math.isfinite, factors.values()))
    want = train_alone(corpus, len(ours), len(factors), seed, lr, factors)
    _expect_start(case, ours, corpus, seed, want["parameters"][0])
    for place in range(len(factors)):
        rows, where = [mine["rows"][place] for mine in ours], f"{case}, step {place + 1}"
        _expect_numbers(where, rows, want["losses"][place], want["grad_norms"][place])
        batches = [(4 // micro_batches, 16)] * micro_batches
        for number, (rank, row) in enumerate(each_rank(where, rows, evidence=lambda row: row["shapes"])):
            rank.expect(row["unchanged"], "gradients changed the parameters", "changed")
            rank.expect_equal(row["shapes"], batches, what="the list of shapes that the model was called with")
            if finite or place == 0:
                expect_parameters(where, number, row["parameters"], want["parameters"][place + 1])
            expect_described(where, number, row["parameters"], row["norm"], row["digest"])
    for rank, rate in each_rank(case, [mine["lr"] for mine in ours]):
        rank.expect(rate == lr, f"the learning rate is {rate} afterwards, expected {lr}")


def _expect_start(case: str, ours: list[dict], corpus: np.ndarray, seed: int, start: np.ndarray) -> None:
    """Each rank builds the model with a seed of its own, and starts with rank 0's parameters and the same corpus."""
    for number, (rank, mine) in enumerate(each_rank(case, ours, evidence=lambda mine: mine["numel"])):
        shifts = [used - seed for used in mine["seeds"]]
        rank.expect(shifts == [number], f"build_model was called with {mine['seeds']}, expected seed + rank", shifts)
        rank.expect(mine["numel"] == NUMEL, f"numel is {mine['numel']}, expected {NUMEL}")
        rank.expect(np.array_equal(mine["start"], start), "the parameters are not rank 0's", ["start", number])
        right = np.array_equal(mine["corpus"], np.resize(corpus[:64], len(mine["corpus"])))
        rank.expect(right, "the corpus is not make_corpus(seed, …)", ["corpus", number])


def _expect_numbers(case: str, rows: list[dict], loss: float, norm: float) -> None:
    """All ranks report the same loss and the same norm of the gradient: those of one process."""
    losses, norms = [row["loss"] for row in rows], [row["grad_norm"] for row in rows]
    expect_type(case, losses[0], float, what="the loss")
    expect_type(case, norms[0], float, what="grad_norm")
    evidence = [losses, norms, [row["own"] for row in rows]]
    expect_equal(case, losses, losses[:1] * len(rows), what="the list of all ranks' losses", evidence=evidence)
    expect_equal(case, norms, norms[:1] * len(rows), what="the list of all ranks' norms", evidence=evidence)
    how = {"because": "one process has that", "evidence": evidence}
    expect_close(case, losses[0], np.array(loss), what="the loss", rtol=0.0, atol=LOSS_ERROR, **how)
    expect_close(case, norms[0], np.array(norm), what="the norm of the mean gradient", rtol=NORM_ERROR, **how)


@check("17-ex2-trainer", points=1)
def steps_send_the_gradient_once(Trainer, *, rng):
    """A step sends one reduce-scatter and one all-gather; everything else is small."""
    # A run as those whose numbers are compared: a trainer cannot save messages here and send them there.
    seed, factors = int(rng.integers(100)), {1: 1.0, 2: 3.0, 3: 1.0}
    results = run_ranks(_drive_trainer, 3, (Trainer, seed, [(2, 3e-3, factors)]))
    large = []
    for number in range(3):
        parts = results.ledger.of(number).between_barriers()
        large.append([sorted(m.call for m in part if m.bytes > 1024) for part in (parts[2], parts[4], parts[6])])
    for rank, steps in each_rank("communication of a step", large):
        for calls in steps:
            two = len(calls) == 2 and calls[0].startswith("all_gather") and calls[1].startswith("reduce_scatter")
            rank.expect(two, f"one step sent {calls}, expected one reduce-scatter and one all-gather")
    ours = [mine[0] for mine in results]
    _expect_trainer("N = 3, 2 micro-batches", ours, ours[0]["corpus"], seed, 2, 3e-3, factors)
