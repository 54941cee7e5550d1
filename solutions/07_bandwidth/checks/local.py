"""Lesson 07, exercise 6: many steps alone, then one exchange."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank
from autograder.checking.stage import run_ranks


def _slope(w: np.ndarray, rank: int, step: int) -> np.ndarray:
    """A gradient that depends on the rank and the step, and on w along a curve."""
    places = np.arange(w.size).reshape(w.shape)
    return (np.tanh(w * (rank + 1)) + 0.5 * np.cos(step + places * (rank + 1))).astype(w.dtype)


def _drive(rank, world_size, diloco, start, arguments) -> dict:
    """Inside a rank: train; the weights, the steps that the gradient was asked for, and whether `start` was changed."""
    weights, steps = torch.from_numpy(start.copy()), []

    def gradient(w, step):
        steps.append(step)
        return torch.from_numpy(_slope(w.detach().numpy(), rank, step))

    result = diloco(weights, gradient, **arguments)
    got = result.detach().numpy().copy() if isinstance(result, torch.Tensor) else None
    dist.barrier()
    return {"weights": got, "steps": steps, "changed": not np.array_equal(weights.numpy(), start)}


def _trained(start: np.ndarray, world_size: int, rounds, inner_steps, lr, outer_lr=1.0, momentum=0.0) -> np.ndarray:
    """One process with a copy of the weights for each rank; the momentum is summed anew from all rounds so far."""
    shared, ways = start.astype(np.float64), []
    for number in range(rounds):
        copies = [shared.copy() for _ in range(world_size)]
        for rank, copy in enumerate(copies):
            for step in range(number * inner_steps, (number + 1) * inner_steps):
                copy -= lr * _slope(copy, rank, step)
        ways.append(shared - np.mean(copies, axis=0))
        # Nesterov's step: the newest way has the weight 1 + momentum, one that is `age` rounds old momentum^(age + 1).
        weights = [momentum ** (age + 1) + (age == 0) for age in range(len(ways))]
        shared = shared - outer_lr * sum(weight * way for weight, way in zip(weights, reversed(ways), strict=True))
    return shared


def _expect_trained(rng: np.random.Generator, diloco, cases: list[tuple]) -> None:
    for world_size, shape, dtype, arguments in cases:
        names = ", ".join(f"{name} {value}" for name, value in arguments.items())
        case = f"{count_of_ranks(world_size)}, shape {shape}, {dtype}, {names}"
        start = rng.normal(size=shape).astype(dtype)
        results = run_ranks(_drive, world_size, (diloco, start, arguments))
        expected = _trained(start, world_size, **arguments)
        asked = list(range(arguments["rounds"] * arguments["inner_steps"]))
        why = "with one inner step it is synchronous SGD" if arguments["inner_steps"] == 1 else ""
        for rank, result in each_rank(case, results, evidence=lambda result: [result["weights"], result["steps"]]):
            rank.expect_equal(result["steps"], asked, what="the list of steps that gradient was called with")
            kind = "no tensor" if result["weights"] is None else str(result["weights"].dtype)
            rank.expect(kind == dtype, f"the result is {kind}, expected a tensor of {dtype}", ["dtype", kind])
            rtol = 1e-10 if dtype == "float64" else 1e-5
            rank.expect_close(result["weights"], expected, what="the result", rtol=rtol, because=why)


@check("07-ex6-diloco", points=2)
def rounds_follow_one_process(diloco, *, rng):
    """Without momentum: w − outer_lr · Δ in each round, on every rank; with H = 1, outer_lr = 1: synchronous SGD."""
    synchronous = {"rounds": 4, "inner_steps": 1, "lr": 0.25}
    rounds = {"rounds": 3, "inner_steps": 4, "lr": 0.125}
    cases = [(2, (6,), "float64", synchronous), (3, (2, 3), "float64", rounds)]
    half = rounds | {"outer_lr": 0.5}
    cases += [(2, (5,), "float32", half), (1, (1, 1), "float64", half)]
    _expect_trained(rng, diloco, cases)


@check("07-ex6-diloco", points=1)
def outer_steps_are_nesterov(diloco, *, rng):
    """With momentum the outer steps are those of SGD with Nesterov momentum."""
    arguments = {"rounds": 4, "inner_steps": 3, "lr": 0.125, "outer_lr": 0.75, "momentum": 0.5}
    _expect_trained(rng, diloco, [(2, (6,), "float64", arguments)])


@check("07-ex6-diloco", points=0.5)
def one_all_reduce_a_round(diloco, *, rng):
    """One all-reduce of the weights' size in each round, and nothing else: for H = 100, a hundredth of the bytes."""
    for world_size, inner_steps in [(2, 100), (3, 1)]:
        case = f"{count_of_ranks(world_size)}, 3 rounds, {inner_steps} inner steps"
        start = rng.normal(size=10)
        arguments = {"rounds": 3, "inner_steps": inner_steps, "lr": 0.01, "outer_lr": 0.5}
        results = run_ranks(_drive, world_size, (diloco, start, arguments))
        for rank, result in each_rank(case, results, evidence=lambda result: result["weights"]):
            rank.expect_close(
                result["weights"], _trained(start, world_size, **arguments), what="the result", rtol=1e-10
            )
        calls = [[m for m in results.ledger.of(number) if m.call != "barrier"] for number in range(world_size)]
        for rank, made in each_rank(case, [[[m.call, m.bytes] for m in mine] for mine in calls]):
            rank.expect_equal(made, [["all_reduce", start.nbytes]] * 3, what="the list of [call, bytes]")


@check("07-ex6-diloco", points=0.5)
def start_stays_as_it_was(diloco, *, rng):
    """The weights that are passed in stay as they were."""
    for outer_lr, momentum in ((1.0, 0.0), (0.5, 0.5)):
        case = f"1 rank, outer_lr {outer_lr}, momentum {momentum}"
        arguments = {"rounds": 2, "inner_steps": 2, "lr": 0.25, "outer_lr": outer_lr, "momentum": momentum}
        start = rng.normal(size=5)
        results = run_ranks(_drive, 1, (diloco, start, arguments))
        for rank, result in each_rank(case, results, evidence=lambda result: result["changed"]):
            rank.expect(not result["changed"], "the weights that were passed in were changed: work on a copy")
        for rank, result in each_rank(case, results, evidence=lambda result: result["weights"]):
            if momentum:  # another check compares the numbers
                moved = result["weights"] is not None and not np.array_equal(result["weights"], start)
                rank.expect(moved, "the result is not what training has made of the weights")
            else:
                expected = _trained(start, 1, **arguments)
                rank.expect_close(result["weights"], expected, what="the result", rtol=1e-10)
