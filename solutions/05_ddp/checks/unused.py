"""Lesson 05, exercise 7: parameters that a step does not use, and errors that say which."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

import ranks
from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import DIED, HANG, RAISED, CheckFailed, fail
from autograder.checking.stage import run_ranks
from autograder.checks.ddp.common import (
    PATIENCE,
    arrays_of,
    calls_inside,
    case_of,
    expect_error,
    expect_same,
    in_words,
    rows_of,
    sent_by,
    spec_bytes,
)

#: A layer's inputs: so many that a byte for each element would be more than 8 bytes a parameter.
_WIDTH = 9


class _Branches(nn.Module):
    """Three layers, whose biases are equal; each call says which of them it uses."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.middle, self.last = (nn.Linear(_WIDTH, _WIDTH).double() for _ in range(3))
        for layer in (self.first, self.middle, self.last):
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor, use: str) -> torch.Tensor:
        """(B, _WIDTH) → (B, _WIDTH); `use` holds the initials of the layers."""
        for name in ("first", "middle", "last"):
            if name[0] in use:
                x = torch.tanh(getattr(self, name)(x))
        return x


#: For each step the initials of the layers that rank 0 and the other ranks use; "" is a forward without a backward.
_USES = (("fml", "fml"), ("fm", "f"), ("l", "f"), ("fml", ""), ("ml", "ml"))


def _rows(seed: int, rank: int, step: int = 0) -> torch.Tensor:
    """A rank's batch in a step, (4, _WIDTH)."""
    return rows_of(seed, rank, step).repeat(1, _WIDTH // 3)


def _use(step: int, rank: int) -> str:
    return _USES[step][min(rank, 1)]


def _drive_unused(rank: int, world_size: int, ddp_class: Any, seed: int) -> dict[str, list]:
    """Inside a rank: steps in which ranks use different layers, with the student's wrapper and with torch's."""
    seen: dict[str, list] = {"ours": [], "torch": []}
    module = _Branches(seed + rank)
    ddp = ddp_class(module, bucket_bytes=750, find_unused_parameters=True)
    for step in range(len(_USES)):
        ddp.zero_grad()
        with record_function(f"step {step}"):
            out = ddp(_rows(seed, rank, step), _use(step, rank))
            if out.requires_grad:
                out.sum().backward()
            ddp.finish_gradient_sync()
        seen["ours"].append(arrays_of(p.grad for p in module.parameters()))
    ddp.zero_grad()  # an unused parameter brings what it has: rank 0's last layer, left by the caller
    if rank == 0:
        module.last.bias.grad = torch.arange(float(_WIDTH), dtype=torch.float64)
        module.last.weight.grad = torch.zeros(_WIDTH, _WIDTH, dtype=torch.float64)  # a gradient, although of zeros
    with record_function(f"step {len(_USES)}"):
        ddp(_rows(seed, rank, 8), "f").sum().backward()
        ddp.finish_gradient_sync()
    seen["ours"].append(arrays_of(p.grad for p in module.parameters()))
    dist.barrier()  # it is recorded, unlike what torch's wrapper sends: a rank that has run ahead is seen to wait
    module = _Branches(seed + rank)
    theirs = nn.parallel.DistributedDataParallel(
        module, process_group=dist.new_group(), find_unused_parameters=True, bucket_cap_mb=25
    )
    for step in range(3):
        theirs.zero_grad()
        theirs(_rows(seed, rank, step), _use(step, rank)).sum().backward()
        seen["torch"].append(arrays_of(p.grad for p in module.parameters()))
    return seen


def _unused_oracle(seed: int, world_size: int, step: int) -> list[np.ndarray | None]:
    """The mean of the ranks' gradients, zeros for None; None where all ranks have None."""
    local = []
    for rank in range(world_size):
        model = _Branches(seed)
        number, use = (step, _use(step, rank)) if step < len(_USES) else (8, "f")
        if use:
            model(_rows(seed, rank, number), use).sum().backward()
        if step == len(_USES) and rank == 0:
            model.last.bias.grad = torch.arange(float(_WIDTH), dtype=torch.float64)
            model.last.weight.grad = torch.zeros(_WIDTH, _WIDTH, dtype=torch.float64)
        local.append(arrays_of(p.grad for p in model.parameters()))
    return [_mean_of_some(column, world_size) for column in zip(*local, strict=True)]


def _mean_of_some(arrays: tuple, world_size: int) -> np.ndarray | None:
    there = [array for array in arrays if array is not None]
    return np.sum(there, axis=0) / world_size if there else None


def _case_of_step(step: int, world_size: int) -> str:
    if step == len(_USES):
        return case_of(world_size, "rank 0 had a gradient of the unused last layer before")
    used = [_use(step, rank) or "nothing" for rank in range(world_size)]
    return case_of(world_size, f"used layers (initials) {used}")


_SPECS: list[tuple] = [((_WIDTH, _WIDTH), "float64", True), ((_WIDTH,), "float64", True)] * 3


@check("05-ex7-unused", points=1.5)
def unused_gradients_count_as_zeros(CheckedDataParallel, *, rng):  # noqa: N803  the notebook's name
    """With find_unused_parameters=True an unused parameter brings its .grad, or zeros; every rank gets the mean."""
    specs, total = _SPECS, sum(map(spec_bytes, _SPECS))  # however it is divided among buckets
    for world_size in (1, 2, 3):
        seed = inputs.seed(rng)
        results = run_ranks(_drive_unused, world_size, (CheckedDataParallel, seed), PATIENCE)
        for step in range(len(_USES) + 1):
            case = _case_of_step(step, world_size)
            right = _unused_oracle(seed, world_size, step)
            # What no rank used is another check's.
            expected = [
                array if array is not None else np.zeros(shape) for array, (shape, *_) in zip(right, specs, strict=True)
            ]
            got = [_zeros_for_none(result["ours"][step], right) for result in results]
            if step < len(results[0]["torch"]):
                theirs = _zeros_for_none(results[0]["torch"][step], right)
                expect_same(case, "gradient", got, theirs, "torch's DDP has")
            expect_same(case, "gradient", got, expected, "the mean over the ranks is")
            for rank in range(world_size):
                sent = sent_by(calls_inside(results.ledger, rank, f"step {step}"))
                sizes = [size for _, size in sent]
                possible = {sum(sizes), *(sum(sizes) - size for size in sizes if size <= 8 * len(specs))}
                fits = total in possible and not any("_object" in call for call, _ in sent)
                if not fits and not (world_size == 1 and 0 in possible):
                    wanted = f"{total} bytes for the buckets and at most one call more, with a small tensor"
                    fail(f"on rank {rank}, the step sent {in_words(sent)}, expected {wanted}", case, sent)


def _zeros_for_none(arrays: list, right: list) -> list:
    """Where no rank has a gradient, None counts as zeros."""
    shapes = [shape for shape, *_ in _SPECS]
    unused = [one is None and wanted is None for one, wanted in zip(arrays, right, strict=True)]
    return [np.zeros(shape) if no else one for one, shape, no in zip(arrays, shapes, unused, strict=True)]


@check("05-ex7-unused", points=0.5)
def what_nobody_used_keeps_none(CheckedDataParallel, *, rng):  # noqa: N803
    """With the flag, a parameter whose .grad is None on every rank keeps None."""
    for world_size in (1, 2):
        seed = inputs.seed(rng)
        results = run_ranks(_drive_unused, world_size, (CheckedDataParallel, seed), PATIENCE)
        for step in range(len(_USES) + 1):
            right = _unused_oracle(seed, world_size, step)
            for rank, result in enumerate(results):
                has = [one is not None for one in result["ours"][step]]
                if has != [array is not None for array in right]:
                    text = f"on rank {rank}, parameters {_numbers(has)} have gradients, expected "
                    text += f"{_numbers([array is not None for array in right])}: those that a rank used"
                    fail(text, _case_of_step(step, world_size), has)
            got = [result["ours"][step] for result in results]
            expect_same(_case_of_step(step, world_size), "gradient", got, right, "the mean over the ranks is")


def _numbers(flags: list[bool]) -> list[int]:
    return [number for number, flag in enumerate(flags) if flag]


def _drive_names(rank: int, world_size: int, ddp_class: Any, seed: int, cases: list[tuple], caught: bool) -> list:
    """Inside a rank: one wrapper for each case, without the flag; the text of its RuntimeError, or None."""
    said = []
    for number, (bucket_bytes, use_of_0, use_of_others, *left) in enumerate(cases):
        branches = _Branches(seed)
        if "again" in left:
            branches.again = branches.middle
        if "gain" in left:
            branches.gain = nn.Parameter(torch.ones(3), requires_grad=False)
        ddp = ddp_class(branches, bucket_bytes=bucket_bytes)
        for name in {*left} - {"gain", "again"}:  # gradients that are not this step's
            for p in getattr(ddp.module, name).parameters():
                p.grad = torch.ones_like(p)
        with record_function(f"case {number}"):
            out = ddp(_rows(seed, rank), use_of_others if rank else use_of_0)
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


@check("05-ex7-unused", points=0.5)
def unused_parameters_are_named(CheckedDataParallel, *, rng):  # noqa: N803
    """Without the flag a RuntimeError names unused parameters, no others; if all are used, only buckets are sent."""
    uses = ("fl", "ml", "fml", "fm", "m", "")
    cases: list[tuple] = [(size, use, use) for size in (1, 750, 2**20) for use in uses]
    cases += [(size, "fl", "fl", left) for size in (1, 2**20) for left in ("middle", "gain", "again")]
    for world_size in (2,):
        results = run_ranks(_drive_names, world_size, (CheckedDataParallel, inputs.seed(rng), cases, True))
        for rank, said in enumerate(results):
            for number, ((bucket_bytes, use, _, *left), text) in enumerate(zip(cases, said, strict=True)):
                before = ", an unused one had a gradient before" if "middle" in left else ""
                before += ", one parameter is frozen" if "gain" in left else ""
                before += ", the middle one has two names" if "again" in left else ""
                used = f"rank {rank} used layers {use or 'none'!r}{before}"
                case = case_of(world_size, f"bucket_bytes = {bucket_bytes}, {used}")
                if use == "fml" and text is not None:
                    fail(f"nothing is unused, but a RuntimeError was raised: {text}", case, "raised")
                if use == "fml":
                    sent = sent_by(calls_inside(results.ledger, rank, f"case {number}"))
                    wanted = sum(map(spec_bytes, _SPECS))
                    if sum(size for _, size in sent) != wanted or {call for call, _ in sent} != {"all_reduce"}:
                        text = f"nothing is unused, but the step sent {in_words(sent)}, expected {wanted} bytes"
                        fail(f"{text} for the buckets and nothing more", case, sent)
                    continue
                skipped = [name for initial in "fml" if initial not in use for name in _LAYER_PARAMS[initial]]
                others = [name for initial in use for name in _LAYER_PARAMS[initial]] + ["gain"]
                expect_error(case, text, skipped, others)


def _ended(error: ranks.RankError, case: str) -> CheckFailed:
    kind = RAISED if error.type_name else DIED
    return CheckFailed(error.headline, case, error.evidence, (), kind, error.type_name)


@check("05-ex7-unused", points=0.5)
def a_rank_that_skips_stops_the_step(CheckedDataParallel, *, rng):  # noqa: N803
    """If one rank alone skips a layer, it raises before it starts another bucket, and the others get no means."""
    arguments = (CheckedDataParallel, inputs.seed(rng), [(750, "fl", "fml")])
    case = "2 ranks, only rank 0 skips the middle layer"
    try:
        ranks.run(_drive_names, 2, (*arguments, False), timeout=20, echo=False)
        fail("nothing was raised, and the ranks went on with different gradients", case, "nothing raised")
    except ranks.RankError as error:
        # What its text names is another check's; what gloo raises says who has gone, and is not the wrapper's.
        if (error.rank, error.type_name) != (0, "RuntimeError") or "gloo" in error.headline:
            raise _ended(error, case) from error
    except ranks.HangError as error:
        text = f"rank 0 should have raised a RuntimeError. {error}"
        raise CheckFailed(text, case, error.evidence, kind=HANG) from error
    try:
        ranks.run(_drive_names, 2, (*arguments, True), timeout=20, echo=False)
        text = "rank 0 raised, but rank 1 still got means: finish_gradient_sync() must raise before it starts more"
        fail(text, case, "went on")
    except ranks.HangError:
        pass
    except ranks.RankError as error:
        raise _ended(error, case) from error
