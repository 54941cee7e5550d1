"""Exercise 5: the state of a shard, saved and loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from autograder.checking.check import check
from autograder.checking.expect import CheckFailed, ceil_div, expect_close, fail
from autograder.checking.stage import run_ranks
from autograder.checks.zero1.training import OPTIMIZERS, STEP_ERROR, Case, make_case, unsharded


def _save(rank: int, world_size: int, optimizer_class: Any, case: Case, when: int) -> dict:
    """Make the steps of a case and take a state after `when` of them; the state then, and as it is at the end."""
    inner, kwargs = OPTIMIZERS[case.optimizer]
    tensors = case.tensors()
    optimizer, state, taken = optimizer_class(tensors, inner, **kwargs), None, None
    for step in range(len(case.gradients) + 1):
        if step == when:
            state = optimizer.state_dict()
            taken = {name: _plain(value) for name, value in state.items()}
        if step < len(case.gradients):
            optimizer.param_groups[0]["lr"] = case.rates.get(step, optimizer.param_groups[0]["lr"])
            _set_gradients(tensors, case, step, rank)
            optimizer.step()
    return {
        "kinds": {name: _kind(value) for name, value in state.items()},
        "state": taken,
        "later": {name: _plain(value) for name, value in state.items()},
        "own": all(v.untyped_storage().nbytes() == v.nbytes for v in state.values() if isinstance(v, torch.Tensor)),
    }


def _set_gradients(tensors: list[torch.Tensor], case: Case, step: int, rank: int) -> None:
    optimizer_gradients = case.gradients[step][rank]
    for p, g in zip(tensors, optimizer_gradients, strict=True):
        p.grad = torch.tensor(g).to(p.dtype)


def _plain(value: Any) -> Any:
    return value.detach().numpy().copy() if isinstance(value, torch.Tensor) else value


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dim()}-D {value.dtype}".replace("torch.", "")
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


@check("08-ex5-state")
def state_is_unpadded_copies(ZeroOptimizer, *, rng):  # noqa: N803
    """The state holds copies of this rank's masters and moments without padding, and plain numbers."""
    names = {"SGD": (), "SGD with momentum": ("momentum_buffer",), "Adam": ("exp_avg", "exp_avg_sq", "step")}
    for world_size, shapes in ((1, [(5,)]), (3, [(4,), (3,)]), (5, [(2,), (1,)])):
        for optimizer, inside in names.items():
            for when in (0, 2):
                case = make_case(rng, world_size, optimizer, shapes, steps=3, rates={1: 0.03})
                case.name += f", state after {when} steps"
                expected = {"master", "lr", *(inside if when else ())}
                results = run_ranks(_save, world_size, (ZeroOptimizer, case, when))
                _expect_state(case, results, expected, when)


def _expect_state(case: Case, results: list[dict], expected: set[str], when: int) -> None:
    world_size = len(results)
    size = ceil_div(case.numel, world_size)
    for rank, got in enumerate(results):
        if set(got["state"]) != expected:
            text = f"the state on rank {rank} has the keys {sorted(got['state'])}, expected {sorted(expected)}"
            fail(text, case.name, [sorted(mine["state"]) for mine in results])
        for name, kind in got["kinds"].items():
            wanted = "number" if name in ("lr", "step") else "1-D float32"
            if kind != wanted:
                fail(f"{name!r} on rank {rank} is a {kind}, expected a {wanted}", case.name, [name, kind])
        own = max(0, min(size, case.numel - rank * size))
        for name in set(got["state"]) - {"lr", "step"}:
            if len(got["state"][name]) != own:
                lengths = [len(mine["state"][name]) for mine in results]
                text = f"{name!r} on rank {rank} has {len(got['state'][name])} numbers, expected {own}"
                fail(text, case.name, [name, lengths])
            if not np.array_equal(got["state"][name], got["later"][name]) or not got["own"]:
                text = f"{name!r} on rank {rank} shares its memory with the optimizer"
                fail(text, case.name, ["shared", name])
    whole = np.concatenate([got["state"]["master"] for got in results])
    tensors = unsharded(case, world_size)[when - 1] if when else [p.astype(np.float64) for p in case.parameters]
    want = np.concatenate([p.reshape(-1) for p in tensors])
    expect_close(case.name, whole, want, what="the masters of all ranks together", rtol=STEP_ERROR)
    rate = case.rates[1] if when == 2 else OPTIMIZERS[case.optimizer][1]["lr"]
    for rank, got in enumerate(results):
        if got["state"]["lr"] != rate:
            fail(f"'lr' on rank {rank} is {got['state']['lr']}, expected {rate}", case.name, got["state"]["lr"])
        if "step" in got["state"] and got["state"]["step"] != when:
            text = f"'step' on rank {rank} is {got['state']['step']}, expected {when}"
            fail(text, case.name, got["state"]["step"])


def _restore(rank: int, world_size: int, optimizer_class: Any, case: Case, when: int, others: int) -> dict:
    """One optimizer makes all steps; another, after `others` steps of its own, loads the first one's state."""
    inner, kwargs = OPTIMIZERS[case.optimizer]
    whole, other = case.tensors(), case.tensors()
    with torch.no_grad():
        for p in other:
            p += 1
    first, second = (optimizer_class(tensors, inner, **kwargs) for tensors in (whole, other))
    for step in range(others):
        _set_gradients(other, case, step, rank)
        second.step()
    _set_gradients(other, case, 0, rank)
    second.reduced_gradient()  # of gradients that no step will use
    loaded = None
    for step in range(len(case.gradients)):
        if step == when:
            state = first.state_dict()
            # A copy, in which a state of views shows no change.
            given = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in state.items()}
            before = {name: _plain(value) for name, value in given.items()}
            second.load_state_dict(given)
            loaded = [_plain(p) for p in other]
            at_load = [_plain(p) for p in whole]
        first.param_groups[0]["lr"] = case.rates.get(step, first.param_groups[0]["lr"])
        _set_gradients(whole, case, step, rank)
        first.step()
        if step >= when:
            second.param_groups[0]["lr"] = case.rates.get(step, second.param_groups[0]["lr"])
            _set_gradients(other, case, step, rank)
            second.step()
    changed = [name for name, value in given.items() if not np.array_equal(before[name], _plain(value))]
    ends = [[_plain(p) for p in tensors] for tensors in (whole, other)]
    return {"loaded": loaded, "at_load": at_load, "ends": ends, "changed": changed}


def _load_wrong(rank: int, world_size: int, optimizer_class: Any, case: Case, more: int) -> str:
    """What loading a master shard with `more` numbers too many did instead of raising the ValueError, or "".

    The state with the right master must load all the same.
    """
    inner, kwargs = OPTIMIZERS[case.optimizer]
    tensors = case.tensors()
    optimizer = optimizer_class(tensors, inner, **kwargs)
    _set_gradients(tensors, case, 0, rank)
    optimizer.step()
    state = optimizer.state_dict()
    bad = {**state, "master": torch.zeros(len(state["master"]) + more)}
    try:
        optimizer.load_state_dict(bad)
    except ValueError as error:
        if "master" not in str(error):
            return f"raised a ValueError that does not name master: {error}"
    else:
        return "raised nothing, expected a ValueError that names it"
    try:
        optimizer.load_state_dict(state)
    except ValueError as error:
        return f"raised a ValueError, but loading the right one does so, too: {error}"
    return ""


@check("08-ex5-state")
def restored_goes_on_bit_for_bit(ZeroOptimizer, *, rng):  # noqa: N803
    """Loading sets the parameters, then training goes on bit for bit; a wrong length of master is a ValueError."""
    runs = [(1, "Adam", 2, 0), (2, "Adam", 2, 0), (3, "SGD with momentum", 2, 1), (3, "AdamW", 2, 1), (2, "Adam", 0, 2)]
    for world_size, optimizer, when, others in runs:
        case = make_case(rng, world_size, optimizer, [(3, 2), (4,)], steps=5, rates={1: 0.03})
        into = f"an optimizer that has made {others} step{'' if others == 1 else 's'}"
        case.name += f", loaded after {when} steps into {into}"
        results = run_ranks(_restore, world_size, (ZeroOptimizer, case, when, others))
        for rank, got in enumerate(results):
            pairs = [("after loading", got["at_load"], got["loaded"]), ("at the end", *got["ends"])]
            for moment, want, have in pairs:
                if not all(np.array_equal(a, b) for a, b in zip(want, have, strict=True)):
                    flat = [np.concatenate([p.reshape(-1) for p in mine["ends"][1]]) for mine in results]
                    text = f"the parameters on rank {rank} {moment} are not those of the optimizer that was saved"
                    fail(text, case.name, [moment, *flat])
            if got["changed"]:
                text = (
                    f"on rank {rank}, later steps changed {got['changed'][0]!r} in the dict given to load_state_dict()"
                )
                fail(text, case.name, ["changed", *(mine["changed"] for mine in results)])
        want = np.concatenate([p.reshape(-1) for p in unsharded(case, world_size)[-1]])
        for rank, got in enumerate(results):
            have = np.concatenate([p.reshape(-1) for p in got["ends"][0]])
            what = f"the flat vector of the parameters on rank {rank} at the end"
            expect_close(case.name, have, want, what=what, rtol=STEP_ERROR, atol=STEP_ERROR)
    for world_size, more in ((1, 1), (3, 1), (3, -1)):
        case = make_case(rng, world_size, "Adam", [(3, 2), (4,)], steps=1)
        what = f"loading a master that is one number too {'long' if more > 0 else 'short'}"
        _expect_refusal(f"{case.name}, {what}", what, ZeroOptimizer, case, world_size, more)


def _expect_refusal(name: str, what: str, subject: Any, case: Case, world_size: int, more: int) -> None:
    """On every rank, a ValueError that names master; if some ranks load and then wait for the others, say so."""
    try:
        said = list(run_ranks(_load_wrong, world_size, (subject, case, more)))
    except CheckFailed as error:
        text = f"{what} must raise a ValueError that names master on every rank. {error.message} (case: {name})"
        raise CheckFailed(text, name, error.got) from error.__cause__
    for rank, instead in enumerate(said):
        if instead:
            fail(f"on rank {rank}, {what} {instead}", name, said)
