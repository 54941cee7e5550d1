"""Exercise 5: the whole state that the wrapper gathers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, expect_close, fail
from autograder.checking.stage import run_ranks
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
            optimizer.step()
            optimizer.zero_grad()
            states.append(wrapped.full_state_dict())
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
        own = {n: t.untyped_storage().nbytes() == t.nbytes and not t.requires_grad for n, t in first.items()}
        memory = {address(t): n for n, t in first.items() if t.numel()}
        live = {address(t) for t in [*module.buffers(), *wrapped.parameters()]}
        shared = [n for n, fine in own.items() if not fine] + [memory[a] for a in live & set(memory)]
        observed.append(
            {
                "states": [{n: as_numpy(t) for n, t in s.items()} for s in states],
                "taken": taken,
                "dtypes": {n: str(t.dtype)[6:] for n, t in first.items()},
                "shared": sorted(shared),
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


@check("09-ex5-fsdp")
def full_state_is_the_plain_modules(FullyShardedDataParallel, *, rng):  # noqa: N803
    """Rank 0 gets copies of the plain module's whole state, the others an empty one; buffers start as rank 0's."""
    for world_size in (3, 1):
        cases = [Training(model, "SGD with momentum", inputs.seed(rng), 2) for model in (*MODELS[:4], WITH_A_ROOT[0])]
        cases.append(Training(MODELS[0], "SGD with momentum", inputs.seed(rng), 2, dtype="bfloat16"))
        results = run_ranks(_drive_state, world_size, (FullyShardedDataParallel, cases))
        for number, case in enumerate(cases):
            _expect_state(case, case.named(world_size), [mine[number] for mine in results], world_size)
        want, got = results[0][0]["pair"]
        expect_close(f"{count_of_ranks(world_size)}, a module of two inputs", got, want, what="the output", rtol=1e-5)


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
    plain = reference.state_dict()
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
        else:
            expect_close(name, have, want, what=key, rtol=5 * ERROR, atol=ERROR)
    if got["shared"]:
        text = "shares its memory, keeps more of it alive than it needs, or requires a gradient"
        fail(f"{got['shared'][0]} in the state {text}", name, got["shared"])
    for key in plain:
        if not np.array_equal(got["taken"][key], got["states"][0][key]):
            fail(f"{key} in a state that was taken before changed with a later step", name, ["changed", key])
    if got["loads"] != "loaded":
        fail(f"a plain module does not load the state: {got['loads']}", name, "not loaded")
