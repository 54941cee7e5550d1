"""Lesson 17, exercise 3: the invariants of a step and of a checkpoint."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autograder.checks.check import EVENTS, check
from autograder.checks.expect import each_rank, expect_equal

from .common import PIECES, equip, expect_told, run_ranks, spoil, tensor_bytes, what_it_says


def _drive_check_step(rank: int, world_size: int, check_step: Any, cases: list[dict]) -> list[tuple]:
    outcomes = []
    for case in cases:
        mine = {name: value[rank] if isinstance(value, tuple) else value for name, value in case.items()}
        mine["losses"] = list(mine["losses"])
        dist.barrier()
        outcomes.append(what_it_says(lambda mine=mine: check_step(rank, world_size, **mine)))
    dist.barrier()
    return outcomes


def _expect_steps(
    check_step: Any, rng: Any, number_of_ranks: int, cases: Callable[..., list[tuple]], padded: int = 0
) -> None:
    """Of each (case, what is changed in a healthy step, word, culprit) all ranks say the same; in a drawn order.

    padded: so many parameters more than a multiple of four.
    """
    numel, step = int(rng.integers(100, 1000)) * 4 + padded, int(rng.integers(11, 99))
    held = 12 * -(numel // -number_of_ranks)
    good = {
        "step": step,
        "losses": [4.2, 4.0, 3.9],
        "norm": 13.25,
        "digest": "ab" * 32,
        "state_bytes": held,
        "numel": numel,
    }
    tried = [("all is well", {}, "", None), *cases(held, numel)]
    order = rng.permutation(len(tried)).tolist()  # an answer must not know a case by its number
    results = run_ranks(_drive_check_step, number_of_ranks, (check_step, [{**good, **tried[i][1]} for i in order]))
    for number, (case, _, word, culprit) in enumerate(tried):
        expect_told(case, [mine[order.index(number)] for mine in results], word, culprit, step)


@check("17-ex3-invariants", points=1)
def losses_that_do_not_fall_are_told_by_all_ranks(check_step, *, rng):
    """A loss that does not fall, on whichever rank, is a RuntimeError on all, with loss, the rank and the step."""
    falls, rises = [4.2, 4.0, 3.9], [4.2, 4.0, 4.1]

    def cases(held, numel):
        mixed = {"losses": (falls, falls, falls, rises), "digest": ("a", "b", "a", "a")}
        return [
            ("the loss rises on rank 2", {"losses": (falls, falls, rises, falls)}, "loss", 2),
            ("the losses of ranks 1 and 3 rise", {"losses": (falls, rises, falls, rises)}, "loss", 1),
            ("the loss of rank 3 and the parameters of rank 1", mixed, "loss", 3),
            ("the loss stays as it is", {"losses": [4.2, 4.0, 4.0]}, "loss", 0),
            ("the loss rises a little", {"losses": [4.0, 4.0000001]}, "loss", 0),
            ("an earlier rise", {"losses": [4.2, 4.5, 4.4]}, "", None),
            ("a single loss", {"losses": [4.2]}, "", None),
            ("a rise where falling is off", {"losses": [4.2, 5.0], "falling": False}, "", None),
            ("loss and bytes", {"losses": [1.0, 2.0], "state_bytes": held - 12}, "loss", 0),
        ]

    _expect_steps(check_step, rng, 4, cases)


@check("17-ex3-invariants", points=0.75)
def parameters_are_those_of_most_ranks(check_step, *, rng):
    """A norm or a digest that most ranks do not have is named by all ranks, with parameters, the rank and the step."""

    def cases(held, numel):
        mixed = {"digest": ("a", "a", "b", "a"), "state_bytes": (held, 0, held, held)}
        return [
            ("the norm of rank 2 differs", {"norm": (13.25, 13.25, 13.250001, 13.25)}, "parameters", 2),
            ("the digests of ranks 1 and 3 differ", {"digest": ("a", "b", "a", "c")}, "parameters", 1),
            ("rank 0 differs from all others", {"digest": ("x", "y", "y", "y")}, "parameters", 0),
            ("two ranks against two", {"digest": ("y", "x", "x", "y")}, "parameters", 1),
            ("parameters of 2 and bytes of 1", mixed, "parameters", 2),
        ]

    _expect_steps(check_step, rng, 4, cases)


@check("17-ex3-invariants", points=0.5)
def bytes_are_those_of_a_shard(check_step, *, rng):
    """Bytes that are not 12 for each number of a shard, rounded up, are told by all ranks."""

    def cases(held, numel):
        return [
            ("rank 3 holds 4 bytes more", {"state_bytes": (held, held, held, held + 4)}, "bytes", 3),
            ("rank 1 holds no moments", {"state_bytes": (held, held // 3, held, held)}, "bytes", 1),
            ("no rank shards", {"state_bytes": 12 * numel}, "bytes", 0),
            ("rank 2 does not round up", {"state_bytes": (held, held, held - 12, held)}, "bytes", 2),
        ]

    _expect_steps(check_step, rng, 4, cases, padded=1)
    _expect_steps(
        check_step, rng, 1, lambda held, numel: [("one rank without moments", {"state_bytes": held // 3}, "bytes", 0)]
    )


@check("17-ex3-invariants", points=0.5)
def nan_is_no_fall_and_equal_to_nan(check_step, *, rng):
    """A loss of nan does not fall, nor does a loss after nan; a norm that is nan on all ranks is the same on all."""
    nan = math.nan
    # One rank has nobody to tell, so that only what counts as a fall is judged.
    losses = [
        ("the loss is nan", {"losses": [4.2, 4.0, nan]}, "loss", 0),
        ("the loss after a nan", {"losses": [4.2, nan, 4.0]}, "loss", 0),
    ]
    norms = [
        ("the norm is nan on all ranks", {"norm": nan}, "", None),
        ("the norm is nan on rank 3", {"norm": (1.0, 1.0, 1.0, nan)}, "parameters", 3),
    ]
    _expect_steps(check_step, rng, 1, lambda held, numel: losses)
    _expect_steps(check_step, rng, 4, lambda held, numel: norms)


def _drive_check_start(rank: int, world_size: int, check_start: Any, cases: list[tuple]) -> list[tuple]:
    outcomes = []
    for step, digests, last in cases:
        dist.barrier()
        outcomes.append(
            what_it_says(lambda s=step, d=digests, m=last: check_start(rank, world_size, s, d[rank], m[rank]))
        )
    dist.barrier()
    return outcomes


@check("17-ex3-invariants", points=1)
def memory_is_compared_before_forward(check_start, *, rng):
    """Parameters that differ from what the step before left are a RuntimeError on every rank, with rank and step."""
    step, same, none = int(rng.integers(11, 99)), ("a", "a", "a"), (None, None, None)
    cases: list[tuple[str, tuple, str, int | None]] = [
        ("nothing has changed", (step, same, same), "", None),
        ("there was no step before", (step, ("a", "b", "c"), none), "", None),
        ("rank 1 has changed", (step, ("a", "b", "a"), same), "memory", 1),
        ("rank 0 has changed", (step, ("x", "a", "a"), same), "memory", 0),
        ("ranks 1 and 2 have changed", (step, ("a", "b", "b"), same), "memory", 1),
        ("all ranks have changed alike", (step, ("b", "b", "b"), same), "memory", 0),
        ("the ranks differ, and nothing has changed", (step, ("a", "b", "c"), ("a", "b", "c")), "", None),
    ]
    order = rng.permutation(len(cases)).tolist()
    results = run_ranks(_drive_check_start, 3, (check_start, [cases[i][1] for i in order]))
    for number, (case, _, word, culprit) in enumerate(cases):
        expect_told(case, [mine[order.index(number)] for mine in results], word, culprit, step)


def _small_optimizer(rank: int) -> Any:
    """A ZeroOptimizer of 10 numbers after two steps."""
    w = nn.Parameter(torch.arange(10.0))
    optimizer = PIECES.ZeroOptimizer([w], torch.optim.Adam, lr=0.1)
    for _ in range(2):
        w.grad = torch.arange(10.0) - 4 + rank
        optimizer.step()
    return optimizer


def _drive_save(rank: int, world_size: int, save_verified: Any, root: str, cases: list[tuple]) -> list[dict]:
    outcomes = []
    for number, (how, where, culprit) in enumerate(cases):

        def load(path, how=how, culprit=culprit, where=where):
            state, manifest = PIECES.load_sharded(path)
            return (spoil(state, how) if where == "load" and rank == culprit else state), manifest

        def save(state, *arguments, how=how, culprit=culprit, where=where):
            return PIECES.save_sharded(spoil(state, how) if where == "save" and rank == culprit else state, *arguments)

        equip(save_verified, load_sharded=load, save_sharded=save)
        optimizer, entries = _small_optimizer(rank), []
        dist.barrier()
        step = 3 if how == "again" else 3 + number
        said = what_it_says(lambda s=step, o=optimizer, e=entries: e.append(save_verified(o, root, s)))
        mine = hashlib.sha256(b"".join(tensor_bytes(optimizer.state_dict()))).hexdigest()
        entry = entries[0] if entries and isinstance(entries[0], dict) else {}
        entry = {name: str(value) if isinstance(value, Path) else value for name, value in entry.items()}
        plain = {name: value for name, value in entry.items() if isinstance(value, (str, int))}
        outcomes.append(
            {"said": said, "entry": plain, "sha256": mine, "kind": type(entries[0]).__name__ if entries else ""}
        )
    return outcomes


@check("17-ex3-invariants", points=0.75, fixed=EVENTS)
def checkpoints_are_read_back(save_verified):
    """What was saved is loaded and compared; a difference on one rank stops all; CheckpointError passes through."""
    _expect_saves(save_verified, [("well", "", 0), ("one bit", "load", 2), ("one bit", "save", 1), ("again", "", 0)])


@check("17-ex3-invariants", points=0.5, fixed=EVENTS)
def numbers_and_types_of_a_checkpoint_count(save_verified):
    """A checkpoint with another learning rate, without a tensor, or with one of another dtype is not what was saved."""
    cases = [("well", "", 0), ("a value", "load", 1), ("a name", "load", 0), ("a dtype", "load", 1)]
    _expect_saves(save_verified, cases)


def _expect_saves(save_verified: Any, cases: list[tuple[str, str, int]]) -> None:
    """Of each (what is spoiled, where, on which rank) all ranks say the same."""
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        results = run_ranks(_drive_save, 3, (save_verified, root, cases))
        for number, (how, where, culprit) in enumerate(cases):
            rows = [mine[number] for mine in results]
            case = f"{how} differs on rank {culprit} after {where}" if where else how
            if how == "again":
                kinds, why = [row["said"][0] for row in rows], "the checkpoint of step 3 is there already"
                expect_equal(case, kinds, ["CheckpointError"] * 3, what="the list of errors by rank", because=why)
            elif where:
                expect_told(case, [row["said"] for row in rows], "checkpoint", culprit, 3 + number)
            else:
                expect_told(case, [row["said"] for row in rows], "", None, 3)
                _expect_entry(case, rows, root)


def _expect_entry(case: str, rows: list[dict], root: str) -> None:
    """Each rank returned the step, the path, and the digest of its own tensors."""
    for number, (rank, row) in enumerate(each_rank(case, rows, evidence=lambda row: row["kind"])):
        entry = row["entry"]
        found = sorted(entry) or row["kind"]
        right = set(entry) == {"step", "path", "sha256"}
        rank.expect(right, f"save_verified returned {found}, expected step, path, sha256", ["keys", found])
        place = entry["step"] == 3 and Path(entry["path"]) == Path(root, "step_00000003")
        rank.expect(place, f"step or path of {entry} is wrong", ["place", entry["step"]])
        own = entry["sha256"] == row["sha256"]
        rank.expect(own, "sha256 is not that of its own tensors, in the order of their names", ["sha", number])
