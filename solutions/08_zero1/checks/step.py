"""Exercises 3 and 4: a sharded step, and clipping by the norm of the whole gradient."""

from __future__ import annotations

import math

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import (
    ceil_div,
    count_of_ranks,
    digits_that_differ,
    each_rank,
    expect_close,
    fail,
)
from autograder.checks.zero1.training import (
    OPTIMIZERS,
    Case,
    expect_steps,
    expect_wire,
    make_case,
    try_cases,
    usual_cases,
)

WORLD_SIZES = (1, 2, 3, 4, 5)
#: bf16 has 8 significant bits.
BF16_ERROR = 2.0**-8
#: Tensors with a dimension that an optimizer keeps for each parameter, the master copy among them.
KEPT = {"SGD": 1, "SGD with momentum": 2, "Adam": 3, "AdamW": 3}


@check("08-ex3-step")
def steps_follow_the_unsharded_optimizer(ShardedOptimizer, *, rng):  # noqa: N803
    """After each step the parameters are the unsharded optimizer's; a step sends as many bytes as an all-reduce."""
    for world_size in WORLD_SIZES:
        tried = try_cases(ShardedOptimizer, usual_cases(rng, world_size), world_size)
        for case, outcomes, _ in tried:
            expect_steps(case, outcomes, world_size)
        for case, _, calls in tried:
            expect_wire(case, calls, world_size)


@check("08-ex3-step")
def state_is_a_shard(ShardedOptimizer, *, rng):  # noqa: N803
    """self.master starts as the shard, then zeros; after a step, only it and the optimizer's state for it are held."""
    for world_size in (3, 4, 1):
        cases = [make_case(rng, world_size, name, [(7, 5), (2,)]) for name in OPTIMIZERS]
        for case, outcomes, _ in try_cases(ShardedOptimizer, cases, world_size):
            _expect_masters(case, [outcome.master for outcome in outcomes])
            for rank, seen in each_rank(case.name, outcomes, evidence=lambda o: ["left", *o.left]):
                left = " and ".join(seen.left)
                rank.expect(
                    not seen.left, f"{left} outlived the step, which must set both gradients of the shard to None"
                )
            want = [4 * KEPT[case.optimizer] * ceil_div(case.numel, world_size)] * len(case.gradients)
            for rank, seen in each_rank(case.name, outcomes, evidence=lambda o: [o.held, o.said]):
                # With one rank a master may lie in a parameter's own memory; then the object holds less.
                at_most = all(held <= most for held, most in zip(seen.held, want, strict=True))
                rank.expect(at_most, f"the bytes held after each step are {seen.held}, expected at most {want}")
                rank.expect_equal(seen.said, want, what="what state_bytes() says after each step")
            expect_steps(case, outcomes, world_size)


def _expect_masters(case: Case, masters: list) -> None:
    """Before the first step: each rank's shard of the flat vector, with zeros after its real numbers."""
    size = ceil_div(case.numel, len(masters))
    flat = np.zeros(size * len(masters))
    flat[: case.numel] = np.concatenate([p.reshape(-1) for p in case.parameters])
    for rank, (master, want) in enumerate(zip(masters, flat.reshape(-1, size), strict=True)):
        if isinstance(master, str):
            fail(f"on rank {rank}, self.master is {master}", case.name, ["master", *masters])
        what = f"self.master on rank {rank}, before the first step,"
        expect_close(case.name, master, want, what=what, rtol=0.0, evidence=["master", *masters])


@check("08-ex3-step")
def gradients_stay_as_they_were(ShardedOptimizer, *, rng):  # noqa: N803
    """After step() each p.grad is as it was before: the same numbers, or None."""
    for world_size in (1, 3):
        *_, mixed = usual_cases(rng, world_size)
        for case, outcomes, _ in try_cases(
            ShardedOptimizer, [make_case(rng, world_size, "Adam", [(3,)]), mixed], world_size
        ):
            for rank, seen in each_rank(case.name, outcomes, evidence=lambda o: o.gradients):
                rank.expect(not seen.gradients, seen.gradients)
            expect_steps(case, outcomes, world_size)


@check("08-ex3-step")
def a_changed_rate_holds_from_the_next_step(ShardedOptimizer, *, rng):  # noqa: N803
    """A learning rate that was changed through param_groups[0]["lr"] holds from the next step on."""
    for world_size in (1, 3):
        cases = [
            make_case(rng, world_size, name, [(3, 2), (5,)], rates={1: 0.3, 3: 0.002}) for name in ("SGD", "AdamW")
        ]
        for case in cases:
            case.name += ", the learning rate changed before steps 2 and 4"
        for case, outcomes, _ in try_cases(ShardedOptimizer, cases, world_size):
            expect_steps(case, outcomes, world_size)


@check("08-ex3-step")
def masters_keep_what_bf16_loses(ShardedOptimizer, *, rng):  # noqa: N803
    """After every step bf16 parameters are the float32 masters, rounded, so that small updates add up."""
    for world_size in (1, 3):
        shapes = [(3, 4), (5,), (3,)]
        dtypes = ("bfloat16", "float32", "bfloat16")
        cases = [make_case(rng, world_size, name, shapes, dtypes=dtypes) for name in ("SGD with momentum", "AdamW")]
        tiny = Case(
            f"{count_of_ranks(world_size)}, 128 updates of 2^-10 to 1.0 in bf16",
            "SGD",
            [np.ones(5, np.float32)],
            [[[np.full(5, -(2.0**-10) / 0.1, np.float32)] for _ in range(world_size)] for _ in range(128)],
            dtypes=("bfloat16",),
        )
        for case, outcomes, calls in try_cases(ShardedOptimizer, [*cases, tiny], world_size):
            expect_steps(case, outcomes, world_size, rtol=BF16_ERROR)
            expect_wire(case, calls, world_size)


# ---- 4 · clipping ----


def _tiny_gradients(rng: np.random.Generator, world_size: int) -> Case:
    """Gradients of norms about 1e-6, beside which the 1e-6 of the scale shows, and a rate that makes steps of them."""
    case = make_case(rng, world_size, "SGD", [(3, 4), (5,)], clip=[2.0**-25, math.inf, 2.0**-26, 1e-3])
    case.name += ", gradients of norms about 1e-6, clipped"
    case.options = {"lr": 2.0**18}
    case.gradients = [[[g * np.float32(2.0**-23) for g in mine] for mine in step] for step in case.gradients]
    return case


@check("08-ex4-clip")
def clipping_uses_the_global_norm(ClippingOptimizer, *, rng):  # noqa: N803
    """Every rank clips by the norm of the whole mean gradient, even of a tiny one, and sends only one number more."""
    for world_size in WORLD_SIZES:
        cases = []
        for shapes in ([(3, 4), (5,)], [(2,)], [(5,), (2, 3), (1,)]):
            for optimizer in ("SGD", "Adam"):
                case = make_case(rng, world_size, optimizer, shapes, steps=4, clip=[1.0, math.inf, 0.25, 1e4])
                case.name += ", clipped"
                cases.append(case)
        cases.append(_tiny_gradients(rng, world_size))
        for case, outcomes, calls in try_cases(ClippingOptimizer, cases, world_size):
            for step, gradients in enumerate(case.gradients):
                mean = [np.mean(parts, axis=0, dtype=np.float64) for parts in zip(*gradients, strict=True)]
                norm = math.sqrt(sum(float(np.sum(g * g)) for g in mean))
                got = [outcome.norms[step] for outcome in outcomes]
                for rank in range(world_size):
                    if not math.isclose(got[rank], norm, rel_tol=1e-5):
                        one, other = digits_that_differ(got[rank], norm)
                        text = f"the norm on rank {rank} in step {step + 1} is {one}, expected {other}"
                        fail(text, case.name, [step, *got])
            expect_steps(case, outcomes, world_size)
            expect_wire(case, calls, world_size)
