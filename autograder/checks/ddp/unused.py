"""Lesson 05, exercise 5: parameters that a step does not use, and errors that say which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

import ranks
from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import CheckFailed, fail
from autograder.checking.stage import run_ranks
from autograder.checks.ddp.common import (
    PATIENCE,
    arrays_of,
    calls_inside,
    case_of,
    expect_error,
    expect_same,
    expected_buckets,
    in_words,
    rows_of,
    sent_by,
    spec_bytes,
)


class _Branches(nn.Module):
    """Three layers; each call says which of them it uses."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.middle, self.last = (nn.Linear(3, 3).double() for _ in range(3))

    def forward(self, x: torch.Tensor, use: str) -> torch.Tensor:
        """(B, 3) → (B, 3); `use` holds the initials of the layers."""
        for name in ("first", "middle", "last"):
            if name[0] in use:
                x = torch.tanh(getattr(self, name)(x))
        return x


#: For each step the initials of the layers that rank 0 and the other ranks use; "" is a forward without a backward.
_USES = (("fml", "fml"), ("fm", "f"), ("l", "f"), ("fm", ""), ("ml", "ml"))


def _use(step: int, rank: int) -> str:
    return _USES[step][min(rank, 1)]


def _drive_unused(rank: int, world_size: int, ddp_class: Any, seed: int) -> dict[str, list]:
    """Inside a rank: steps in which ranks use different layers, with the student's wrapper and with torch's."""
    seen: dict[str, list] = {"ours": [], "torch": []}
    module = _Branches(seed + rank)
    ddp = ddp_class(module, bucket_bytes=100, find_unused_parameters=True)
    for step in range(len(_USES)):
        ddp.zero_grad()
        with record_function(f"step {step}"):
            out = ddp(rows_of(seed, rank, step), _use(step, rank))
            if out.requires_grad:
                out.sum().backward()
            ddp.finish_gradient_sync()
        seen["ours"].append(arrays_of(p.grad for p in module.parameters()))
    ddp.zero_grad()  # rank 0 uses the last layer only in a silent micro-batch
    with record_function("accumulated"):
        with ddp.no_sync():
            ddp(rows_of(seed, rank, 7), "fl" if rank == 0 else "f").sum().backward()
        ddp(rows_of(seed, rank, 8), "f").sum().backward()
        ddp.finish_gradient_sync()
    seen["ours"].append(arrays_of(p.grad for p in module.parameters()))
    module = _Branches(seed + rank)
    theirs = nn.parallel.DistributedDataParallel(
        module, process_group=dist.new_group(), find_unused_parameters=True, bucket_cap_mb=25
    )
    for step in range(3):
        theirs.zero_grad()
        theirs(rows_of(seed, rank, step), _use(step, rank)).sum().backward()
        seen["torch"].append(arrays_of(p.grad for p in module.parameters()))
    return seen


def _unused_oracle(seed: int, world_size: int, calls: list[Callable[[int], list[tuple[int, str]]]]) -> list[list]:
    """The mean of the gradients that the ranks' calls give, zeros for None; None where all ranks have None."""
    steps = []
    for of_rank in calls:
        local = []
        for rank in range(world_size):
            model = _Branches(seed)
            for number, use in of_rank(rank):
                if use:
                    model(rows_of(seed, rank, number), use).sum().backward()
            local.append(arrays_of(p.grad for p in model.parameters()))
        columns = zip(*local, strict=True)
        steps.append([_mean_of_some(column, world_size) for column in columns])
    return steps


def _mean_of_some(arrays: tuple, world_size: int) -> np.ndarray | None:
    there = [array for array in arrays if array is not None]
    return np.sum(there, axis=0) / world_size if there else None


@check("05-ex5-ddp")
def ddp_counts_unused_parameters_as_zeros(DistributedDataParallel, *, rng):  # noqa: N803  the notebook's name
    """With find_unused_parameters=True an unused gradient counts as zeros, and stays None if no rank used it."""
    specs = [((3, 3), "float64", True), ((3,), "float64", True)] * 3
    buckets = [("all_reduce", sum(spec_bytes(specs[i]) for i in b)) for b in expected_buckets(specs, 100)]
    for world_size in (1, 2, 3):
        seed = inputs.seed(rng)
        results = run_ranks(_drive_unused, world_size, (DistributedDataParallel, seed), PATIENCE)
        steps = [lambda rank, step=step: [(step, _use(step, rank))] for step in range(len(_USES))]
        steps.append(lambda rank: [(7, "fl" if rank == 0 else "f"), (8, "f")])
        expected = _unused_oracle(seed, world_size, steps)
        for number, right in enumerate(expected):
            if number < len(_USES):
                used = [_use(number, rank) or "nothing" for rank in range(world_size)]
                case, span = case_of(world_size, f"used layers (initials) {used}"), f"step {number}"
            else:
                case, span = case_of(world_size, "rank 0 used the last layer inside no_sync only"), "accumulated"
            got = [result["ours"][number] for result in results]
            if number < len(results[0]["torch"]):
                expect_same(case, "gradient", got, results[0]["torch"][number], "torch's DDP has")
            expect_same(case, "gradient", got, right, "the mean over the ranks is")
            for rank in range(world_size):
                sent = sent_by(calls_inside(results.ledger, rank, span))
                allowed = [sent[:i] + sent[i + 1 :] for i, (_, size) in enumerate(sent) if size <= 8 * len(specs)]
                if buckets not in [sent, *allowed]:
                    wanted = f"{in_words(buckets)} and at most one small call more"
                    fail(f"on rank {rank}, the step sent {in_words(sent)}, expected {wanted}", case, sent)


def _drive_names(rank: int, world_size: int, ddp_class: Any, seed: int, cases: list[tuple], caught: bool) -> list:
    """Inside a rank: one wrapper for each case, without the flag; the text of its RuntimeError, or None."""
    said = []
    for bucket_bytes, use_of_0, use_of_others, *silent in cases:
        ddp = ddp_class(_Branches(seed), bucket_bytes=bucket_bytes)
        for use in silent:  # leaves gradients that are not this step's
            with ddp.no_sync():
                ddp(rows_of(seed, rank), use).sum().backward()
        out = ddp(rows_of(seed, rank), use_of_others if rank else use_of_0)
        if out.requires_grad:
            out.sum().backward()
        try:
            ddp.finish_gradient_sync()
            said.append(None)
        except RuntimeError as error:
            if not caught:
                raise
            said.append(str(error))
    return said


_LAYER_PARAMS = {name[0]: [f"{name}.weight", f"{name}.bias"] for name in ("first", "middle", "last")}


@check("05-ex5-ddp")
def ddp_never_leaves_a_mystery(DistributedDataParallel, *, rng):  # noqa: N803  the notebook's name
    """Unused parameters without the flag, and a forgotten finish_gradient_sync(), raise errors that name them."""
    _expect_names_when_all_skip(DistributedDataParallel, rng)
    _expect_no_mystery_when_one_skips(DistributedDataParallel, inputs.seed(rng))
    _expect_second_backward_refused(DistributedDataParallel, inputs.seed(rng))


def _expect_names_when_all_skip(ddp_class: Any, rng: np.random.Generator) -> None:
    """finish_gradient_sync() raises a RuntimeError that names the parameters without a gradient."""
    cases: list[tuple] = [(size, use, use) for size in (1, 100, 2**20) for use in ("fl", "ml", "fm", "m", "")]
    cases += [(size, "fl", "fl", "fml") for size in (1, 2**20)]
    for world_size in (1, 2):
        results = run_ranks(_drive_names, world_size, (ddp_class, inputs.seed(rng), cases, True))
        for rank, said in enumerate(results):
            for (bucket_bytes, use, _, *silent), text in zip(cases, said, strict=True):
                before = ", after all of them inside no_sync" if silent else ""
                used = f"rank {rank} used layers {use or 'none'!r}{before}"
                case = case_of(world_size, f"bucket_bytes = {bucket_bytes}, {used}")
                skipped = [name for initial in "fml" if initial not in use for name in _LAYER_PARAMS[initial]]
                others = [name for initial in use for name in _LAYER_PARAMS[initial]]
                expect_error(case, text, skipped, others)


def _expect_no_mystery_when_one_skips(ddp_class: Any, seed: int) -> None:
    """The rank that skips a layer raises an error that says so; if it goes on all the same, the others wait for it."""
    arguments = (ddp_class, seed, [(100, "fl", "fml")])
    case = "2 ranks, only rank 0 skips the middle layer"
    try:
        ranks.run(_drive_names, 2, (*arguments, False), timeout=20, echo=False)
        fail("nothing was raised, and the ranks went on with different gradients", case, "nothing raised")
    except ranks.RankError as error:
        if error.type_name != "RuntimeError":
            raise CheckFailed(f"{error.headline} (case: {case})", case, error.evidence) from error
        expect_error(case, error.headline, _LAYER_PARAMS["m"], _LAYER_PARAMS["f"] + _LAYER_PARAMS["l"])
    except ranks.HangError as error:
        text = f"rank 0 should have raised a RuntimeError. {error} (case: {case})"
        raise CheckFailed(text, case, error.evidence) from error
    try:
        ranks.run(_drive_names, 2, (*arguments, True), timeout=20, echo=False)
        text = "rank 0 raised, but rank 1 still got means: finish_gradient_sync() must raise before it starts more"
        fail(text, case, "went on")
    except ranks.HangError:
        pass
    except ranks.RankError as error:
        raise CheckFailed(f"{error.headline} (case: {case})", case, error.evidence) from error


def _drive_twice(rank: int, world_size: int, ddp_class: Any, seed: int) -> str | None:
    """Inside a rank: the text of the RuntimeError for two backwards in a row; None where there was none."""
    ddp = ddp_class(_Branches(seed), bucket_bytes=100)
    try:
        for step in range(2):
            ddp(rows_of(seed, rank, step), "fml").sum().backward()
    except RuntimeError as error:
        return str(error)
    return None


def _expect_second_backward_refused(ddp_class: Any, seed: int) -> None:
    """Two synchronized backwards without finish_gradient_sync() in between raise a RuntimeError that names it."""
    for world_size in (1, 2):
        results = run_ranks(_drive_twice, world_size, (ddp_class, seed))
        for rank, text in enumerate(results):
            case = case_of(world_size, f"rank {rank}, two backwards without finish_gradient_sync()")
            expect_error(case, text, ["finish_gradient_sync"])
