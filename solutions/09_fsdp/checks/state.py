"""Exercise 5: the whole state that the wrapper gathers, and what is left of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, expect_close, fail
from autograder.checking.stage import run_ranks
from autograder.checks.fsdp.live import COUNTING, UNITS, UnitMeter, stack
from autograder.checks.fsdp.models import ERROR, MODELS, OPTIMIZERS, WITH_A_ROOT, address, as_numpy, batch, build
from autograder.checks.fsdp.steps import Training, follow


def _drive_state(rank: int, world_size: int, wrapper: Any, cases: list[Training]) -> list[dict]:
    observed = []
    for case in cases:
        module, units = build(case.model, case.seed + 7 * rank)
        dtype = [getattr(torch, case.dtype)] if case.dtype != "float32" else []
        wrapped = wrapper(module, units, *dtype)
        started = [[as_numpy(b), str(b.dtype)[6:]] for b in module.buffers()]
        optimizer = OPTIMIZERS[case.optimizer](wrapped.parameters())
        states, taken = [], {}
        for step in range(2):
            x, y = batch(case.model, case.seed, step, rank)
            (wrapped(x).float() - y).square().mean().backward()
            # The first is taken before the optimizer changes what the next forward must use.
            states += [wrapped.full_state_dict()] if not step else []
            optimizer.step()
            optimizer.zero_grad()
            states += [wrapped.full_state_dict()] if step else []
            taken = taken or {name: as_numpy(t) for name, t in states[0].items()}
        first = states[0]
        plain, loads = build(case.model, 0)[0], "loaded"
        try:
            plain.load_state_dict(first, strict=True) if rank == 0 else None
        except RuntimeError as error:
            loads = str(error)
        wrapped.eval()
        modes = [m.training for m in module.modules()]
        wrapped.train()
        live = {address(t) for t in [*module.buffers(), *wrapped.parameters()] if t.numel()}
        faults = []
        for name, t in first.items():
            faults += [[name, "requires a gradient"]] if t.requires_grad else []
            if t.numel() and address(t) in live:
                faults.append([name, "shares its memory with a buffer or a shard of the model"])
            elif t.untyped_storage().nbytes() != t.nbytes:
                faults.append([name, f"keeps {t.untyped_storage().nbytes()} bytes alive for its own {t.nbytes}"])
        observed.append(
            {
                "states": [{n: as_numpy(t) for n, t in s.items()} for s in states],
                "taken": taken,
                "dtypes": {n: str(t.dtype)[6:] for n, t in first.items()},
                "faults": sorted(faults),
                "loads": loads,
                "started": started,
                "modes": any(modes) or not module.training,
            }
        )
    torch.manual_seed(7)
    pair, inputs = nn.Bilinear(2, 3, 2), (torch.ones(1, 2), torch.arange(3.0).view(1, 3))
    expected = as_numpy(pair(*inputs))
    observed[0]["pair"] = [expected, as_numpy(wrapper(pair, [pair])(*inputs))]
    return observed


def _drive_what_is_left(rank: int, world_size: int, wrapper: Any) -> list[float]:
    """Units' bytes alive after the state was taken, above those before; all units trainable, then all but two frozen.

    The rank that counts is not the one that gets the state.
    """
    left = []
    for frozen in (False, True):
        model = stack(frozen, pairs=False)
        wrapped, meter = wrapper(model, list(model)), UnitMeter(rank)
        with meter:
            wrapped.full_state_dict()
            left.append(meter.above(2))
        del wrapped, model
    return left


@check("09-ex5-fsdp")
def full_state_is_the_plain_modules(FullyShardedDataParallel, *, rng):  # noqa: N803
    """Rank 0 gets copies of the plain module's whole state, the others {}; nothing stays whole; buffers start equal."""
    for world_size in (3, 1):
        cases = [Training(model, "SGD with momentum", inputs.seed(rng), 2) for model in (*MODELS[:4], WITH_A_ROOT[0])]
        cases.append(Training(MODELS[0], "SGD with momentum", inputs.seed(rng), 2, dtype="bfloat16"))
        results = run_ranks(_drive_state, world_size, (FullyShardedDataParallel, cases))
        for number, case in enumerate(cases):
            _expect_state(
                case, f"{count_of_ranks(world_size)}, {case.name}", [mine[number] for mine in results], world_size
            )
        want, got = results[0][0]["pair"]
        expect_close(f"{count_of_ranks(world_size)}, a module of two inputs", got, want, what="the output", rtol=1e-5)
    left = run_ranks(_drive_what_is_left, 2, (FullyShardedDataParallel,))[COUNTING]
    for what, extra in zip(("units", "units, 14 frozen"), left, strict=True):
        if extra > 2:
            text = f"after full_state_dict() {extra:.1f} S more are alive than before it, expected at most 2 S"
            fail(text, f"2 ranks, {UNITS} {what} of S bytes", ["left", [x > 2 for x in left]])


def _expect_state(case: Training, name: str, seen: list[dict], world_size: int) -> None:
    fresh = build(case.model, case.seed)[0]
    for rank, got in enumerate(seen):
        for buffer, (values, dtype) in zip(fresh.buffers(), got["started"], strict=True):
            if dtype != str(buffer.dtype)[6:]:
                fail(f"a buffer on rank {rank} is {dtype}, expected {str(buffer.dtype)[6:]}", name, [dtype])
            if not np.array_equal(values, as_numpy(buffer)):
                text = f"a {dtype} buffer on rank {rank} did not start as rank 0's"
                fail(text, name, ["buffer", *(mine["started"][0][0] for mine in seen)])
        if rank and got["states"] != [{}, {}]:
            sizes = [len(state) for state in got["states"]]
            fail(f"rank {rank} got states with {sizes} entries, expected {{}} each time", name, "not empty")
        if got["modes"]:
            fail("eval() and train() of the wrapper do not reach the module", name, "modes")
    got, reference = seen[0], follow(case, world_size)["module"]
    plain, constant = reference.state_dict(), {n for n, _ in fresh.named_buffers()}
    if set(got["states"][1]) != set(plain):
        missing, more = sorted(set(plain) - set(got["states"][1])), sorted(set(got["states"][1]) - set(plain))
        text = f"the state lacks {missing}, and it has {more}, which a plain module's does not"
        fail(text, name, [missing, more])
    for key, tensor in plain.items():
        if got["dtypes"][key] != str(tensor.dtype)[6:]:
            fail(f"{key} is {got['dtypes'][key]}, expected {str(tensor.dtype)[6:]}", name, [key, got["dtypes"][key]])
        want, have = as_numpy(tensor), got["states"][1][key]
        if case.dtype != "float32":
            # Two steps of bf16 can round apart; values that are all bf16 numbers did not come from the shards.
            rounded = have.size > 6 and np.array_equal(torch.tensor(have).bfloat16().float().numpy(), have)
            if rounded or not np.allclose(have, want, atol=0.02):
                fail(f"{key} is not the float32 parameter that the shards hold", name, [key, bool(rounded)])
        elif "calls" in key:
            if int(have) != int(fresh.start.calls) + 2:
                fail(f"the buffer {key} is {int(have)}, expected {int(fresh.start.calls) + 2}", name, int(have))
        elif key in constant:
            expect_close(name, have, want, what=f"the buffer {key}", rtol=0.0)
        else:
            expect_close(name, have, want, what=key, rtol=5 * ERROR, atol=ERROR)
    if got["faults"]:
        fail(f"in the state, {' '.join(got['faults'][0])}", name, got["faults"])
    for key in plain:
        if not np.array_equal(got["taken"][key], got["states"][0][key]):
            fail(f"{key} in a state that was taken before changed with a later step", name, ["changed", key])
    if got["loads"] != "loaded":
        fail(f"a plain module does not load the state: {got['loads']}", name, "not loaded")
