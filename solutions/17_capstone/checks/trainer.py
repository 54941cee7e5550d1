"""Lesson 17, exercise 2: one training step on all ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.distributed as dist

from autograder.checks.check import check
from autograder.checks.expect import each_rank, expect_close, expect_equal, expect_type

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


def _drive_trainer(
    rank: int, world_size: int, trainer_class: Any, seed: int, cases: list[tuple], twice: bool = False
) -> list[dict]:
    """Inside a rank: for each (micro_batches, lr, factors) a trainer and some steps.

    twice: gradients is first called for a step that is then not made.
    """
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
            if twice:
                trainer.gradients(step + 5)
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


def _runs(trainer: Any, rng: np.random.Generator, plan: list[tuple[int, list[tuple]]]) -> Iterator[tuple]:
    """(case, what each rank saw, what one process computes) of each (micro_batches, lr, factors)."""
    seed = int(rng.integers(100))
    for world_size, cases in plan:
        results = run_ranks(_drive_trainer, world_size, (trainer, seed, cases))
        for number, (micro_batches, lr, factors) in enumerate(cases):
            case = f"N = {world_size}, {micro_batches} micro-batches"
            want = train_alone(corpus_of(seed), world_size, len(factors), seed, lr, factors)
            yield (
                case,
                [mine[number] for mine in results],
                {**want, "seed": seed, "micro_batches": micro_batches, "factors": factors},
            )


USUAL = {1: 1.0, 2: 1.0, 3: 1.0}


@check("17-ex2-trainer", points=1)
def steps_follow_one_process(Trainer, *, rng):
    """All ranks start alike, use micro-batches, and have one process's parameters after each step, which they tell."""
    plan = [(4, [(1, 3e-3, USUAL), (4, 2e-3, USUAL)]), (3, [(2, 3e-3, USUAL)]), (1, [(2, 3e-3, USUAL)])]
    for case, ours, want in _runs(Trainer, rng, plan):
        _expect_start(case, ours, corpus_of(want["seed"]), want["seed"], want["parameters"][0])
        batches = [(4 // want["micro_batches"], 16)] * want["micro_batches"]
        for place in range(len(USUAL)):
            rows, where = [mine["rows"][place] for mine in ours], f"{case}, step {place + 1}"
            for number, (rank, row) in enumerate(each_rank(where, rows, evidence=lambda row: row["shapes"])):
                rank.expect(row["unchanged"], "gradients changed the parameters", "changed")
                rank.expect_equal(row["shapes"], batches, what="the list of shapes that the model was called with")
                expect_parameters(where, number, row["parameters"], want["parameters"][place + 1])
                expect_described(where, number, row["parameters"], row["norm"], row["digest"])


@check("17-ex2-trainer", points=1)
def the_loss_is_the_mean_over_all_ranks(Trainer, *, rng):
    """gradients returns the mean loss over all ranks, however many micro-batches: one process's, equal on all ranks."""
    for case, ours, want in _runs(Trainer, rng, [(4, [(1, 3e-3, USUAL)]), (3, [(2, 3e-3, USUAL)])]):
        _expect_numbers(case, ours, "loss", want["losses"], {"rtol": 0.0, "atol": LOSS_ERROR})


@check("17-ex2-trainer", points=1)
def the_norm_is_that_of_the_mean_gradient(Trainer, *, rng):
    """gradients returns the norm of the mean gradient over all ranks and micro-batches, not clipped, on all ranks."""
    for case, ours, want in _runs(Trainer, rng, [(4, [(1, 3e-3, USUAL)]), (3, [(2, 3e-3, USUAL)])]):
        _expect_numbers(case, ours, "grad_norm", want["grad_norms"], {"rtol": NORM_ERROR})


@check("17-ex2-trainer", points=1)
def the_factor_counts_for_this_step_alone(Trainer, *, rng):
    """update(factor) multiplies the learning rate of this step, and the rate is afterwards as it was."""
    plan = [(3, [(1, 3e-3, {1: 1.0, 2: 3.0, 3: 1.0})]), (1, [(1, 3e-3, {1: 1.0, 2: math.inf})])]
    for case, ours, want in _runs(Trainer, rng, plan):
        finite = all(map(math.isfinite, want["factors"].values()))
        for rank, mine in each_rank(case, ours, evidence=lambda mine: mine["lr"]):
            rank.expect(mine["lr"] == 3e-3, f"the learning rate is {mine['lr']} afterwards, expected 0.003")
            # By how much a step moves them shows its rate, also where an earlier step was not one process's.
            states = [mine["start"], *(row["parameters"] for row in mine["rows"])]
            for step, (before, after) in enumerate(itertools.pairwise(states), start=1):
                got = float(np.linalg.norm(after - before))
                true = float(np.linalg.norm(want["parameters"][step] - want["parameters"][step - 1]))
                if finite:
                    near = abs(got - true) <= 0.5 * true
                    told = f"step {step} moves the parameters by {got:.4f}, one process by {true:.4f}"
                    rank.expect(near, told, ["moved", step, got > true])


@check("17-ex2-trainer", points=0.5)
def the_last_call_of_gradients_counts(Trainer, *, rng):
    """Where gradients is called several times before update, the last call alone counts."""
    seed, cases = int(rng.integers(100)), [(2, 3e-3, USUAL)]
    asked, plain = (list(run_ranks(_drive_trainer, 3, (Trainer, seed, cases, twice))) for twice in (True, False))
    both = [(mine[0]["rows"], other[0]["rows"]) for mine, other in zip(asked, plain, strict=True)]
    numbers = [[[(row["loss"], row["grad_norm"]) for row in rows] for rows in pair] for pair in both]
    for rank, (got, once) in each_rank("N = 3, gradients called for another step first", numbers):
        near = np.allclose(np.array(got, float), np.array(once, float), rtol=1e-5)
        rank.expect(bool(near), f"(loss, grad_norm) of the steps are {got}; called once, {once}")


def _expect_start(case: str, ours: list[dict], corpus: np.ndarray, seed: int, start: np.ndarray) -> None:
    """Each rank builds the model with a seed of its own, and starts with rank 0's parameters and the same corpus."""
    for number, (rank, mine) in enumerate(each_rank(case, ours, evidence=lambda mine: mine["numel"])):
        shifts = [used - seed for used in mine["seeds"]]
        rank.expect(shifts == [number], f"build_model was called with {mine['seeds']}, expected seed + rank", shifts)
        rank.expect(mine["numel"] == NUMEL, f"numel is {mine['numel']}, expected {NUMEL}")
        rank.expect(np.array_equal(mine["start"], start), "the parameters are not rank 0's", ["start", number])
        right = np.array_equal(mine["corpus"], np.resize(corpus[:64], len(mine["corpus"])))
        rank.expect(right, "the corpus is not make_corpus(seed, …)", ["corpus", number])


def _expect_numbers(case: str, ours: list[dict], name: str, expected: list[float], bound: dict[str, float]) -> None:
    """All ranks report the same loss, or the same norm of the gradient, in each step: that of one process."""
    what = {"loss": "the loss", "grad_norm": "the norm of the mean gradient"}[name]
    for place, number in enumerate(expected):
        rows, where = [mine["rows"][place] for mine in ours], f"{case}, step {place + 1}"
        got = [row[name] for row in rows]
        for one in got:
            expect_type(where, one, float, what=what)
        evidence = [got, [row["own"] for row in rows]]
        expect_equal(where, got, got[:1] * len(rows), what=f"the list of {name} by rank", evidence=evidence)
        expect_close(
            where, got[0], np.array(number), what=what, because="one process has that", evidence=evidence, **bound
        )


@check("17-ex2-trainer", points=0.5)
def steps_send_the_gradient_once(Trainer, *, rng):
    """A step sends one reduce-scatter and one all-gather; everything else is small."""
    # A run as those whose numbers are compared: a trainer cannot save messages here and send them there.
    seed = int(rng.integers(100))
    results = run_ranks(_drive_trainer, 3, (Trainer, seed, [(2, 3e-3, USUAL)]))
    large = []
    for number in range(3):
        parts = results.ledger.of(number).between_barriers()
        large.append([sorted(m.call for m in part if m.bytes > 1024) for part in (parts[2], parts[4], parts[6])])
    for rank, steps in each_rank("communication of a step", large):
        for calls in steps:
            two = len(calls) == 2 and calls[0].startswith("all_gather") and calls[1].startswith("reduce_scatter")
            rank.expect(two, f"one step sent {calls}, expected one reduce-scatter and one all-gather")
