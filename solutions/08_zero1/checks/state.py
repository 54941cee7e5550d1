"""Exercise 5: the state of a shard, saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import ANYTHING, Case, close, evidence, fact, sentence
from autograder.checks.check import check

from .training import (
    OPTIMIZERS,
    STEP_ERROR,
    Run,
    make_optimizer,
    make_run,
    set_gradients,
    unsharded,
)

STATE = "08-ex5-state"


def _step(optimizer: Any, params: list, run: Run, step: int, rank: int) -> None:
    optimizer.param_groups[0]["lr"] = run.rates.get(step, optimizer.param_groups[0]["lr"])
    set_gradients(params, run.gradients[step][rank])
    optimizer.step()


def _plain(value: Any) -> Any:
    return value.detach().numpy().copy() if isinstance(value, torch.Tensor) else value


def _odd(name: str, value: Any) -> str:
    """In words: that an entry of a state is no plain number or no 1-D tensor, whichever it should be; or ""."""
    kind = "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
    if isinstance(value, torch.Tensor):
        kind = f"{value.dim()}-D {value.dtype}".replace("torch.", "")
    wanted = "number" if name in ("lr", "step") else "1-D float32"
    return "" if kind == wanted else f"{name!r} in the state is a {kind}, expected a {wanted}"


@dataclass
class Saved:
    """A rank's state after some steps, and what later steps did to it."""

    keys: list[str] = fact("the list of the state's keys")
    odd: list[str] = sentence()
    lengths: dict[str, int] = fact("the length of {} in the state")
    shared: str = sentence()
    master: Any = fact("'master' in the state")
    lr: float = fact("'lr' in the state")
    step: Any = fact("'step' in the state")


def _save(rank: int, world_size: int, optimizer_class: Any, run: Run, when: int) -> Saved:
    """Make the steps of a run and take a state after `when` of them."""
    params = run.make_parameters()
    optimizer = make_optimizer(optimizer_class, run, params)
    for step in range(len(run.gradients)):
        if step == when:
            state = optimizer.state_dict()
            taken = {name: _plain(value) for name, value in state.items()}
        _step(optimizer, params, run, step, rank)
    pieces = {name: value for name, value in state.items() if isinstance(value, torch.Tensor) and value.dim()}
    views = [name for name, v in pieces.items() if v.untyped_storage().nbytes() != v.nbytes]
    shared = [*views, *(name for name, v in pieces.items() if not np.array_equal(taken[name], _plain(v)))]
    return Saved(
        keys=sorted(state),
        odd=[_odd(name, state[name]) for name in sorted(state)],
        lengths={name: len(pieces[name]) for name in sorted(pieces)},
        shared=f"{shared[0]!r} in the state shares its memory with the optimizer" if shared else "",
        master=taken.get("master"),
        lr=taken.get("lr"),
        step=taken.get("step"),
    )


def _saved(optimizer_class: Any, rng: np.random.Generator, *names: str) -> Iterator[Case]:
    """Cases of states before the first step and after two. names: of the facts that are compared."""
    inside = {"SGD": [], "SGD with momentum": ["momentum_buffer"], "Adam": ["exp_avg", "exp_avg_sq", "step"]}
    for n, shapes in ((1, [(5,)]), (3, [(4,), (3,)]), (5, [(2,), (1,)])):
        for optimizer in inside:
            for when in (0, 2):
                also = f", state after {when} steps"
                run = make_run(rng, n, optimizer, shapes, steps=3, also=also, rates={1: 0.03})
                keys = sorted(["master", "lr", *(inside[optimizer] if when else [])])
                masters = unsharded(run)[when - 1] if when else run.parameters
                flat = np.concatenate([p.reshape(-1) for p in masters]).astype(np.float64)
                facts = {
                    "keys": keys,
                    "shared": "",
                    "odd": "",
                    "lr": 0.03 if when else OPTIMIZERS[optimizer][1]["lr"],
                    "step": close(when) if "step" in keys else ANYTHING,
                }
                expect = []
                for rank in range(n):
                    mine = flat[rank * run.size : (rank + 1) * run.size]
                    facts["lengths"] = {name: len(mine) for name in keys if name not in ("lr", "step")}
                    facts["master"] = close(mine, atol=STEP_ERROR * float(np.max(np.abs(flat))))
                    expect.append(Saved(**{name: facts[name] for name in names}))
                yield Case(run.name, n, _save, (optimizer_class, run, when), expect)


@check(STATE, points=0.5)
def state_is_the_unpadded_shard(ZeroOptimizer, *, rng):
    """The state holds this rank's master and moments under their names, cut to its real numbers."""
    yield from _saved(ZeroOptimizer, rng, "keys", "lengths", "master")


@check(STATE, points=0.25)
def state_is_copied(ZeroOptimizer, *, rng):
    """What is in the state does not change with later steps, and holds no larger memory."""
    yield from _saved(ZeroOptimizer, rng, "keys", "shared")


@check(STATE, points=0.25)
def state_has_plain_numbers(ZeroOptimizer, *, rng):
    """The current rate and Adam's count of steps are plain numbers, everything else is a 1-D float32 tensor."""
    yield from _saved(ZeroOptimizer, rng, "odd", "lr", "step")


@dataclass
class Restored:
    """Two optimizers of a rank: one makes all steps, the other loads its state on the way."""

    differ: str = sentence()
    changed: str = sentence()
    parameters: Any = fact("the flat vector of the parameters at the end")
    moved: bool = fact("whether the steps after loading moved the parameters")
    ends: Any = evidence()


def _restore(rank: int, world_size: int, optimizer_class: Any, run: Run, when: int, others: int) -> Restored:
    """One optimizer makes all steps; another, after `others` steps of its own, loads the first one's state."""
    whole, other = run.make_parameters(), run.make_parameters()
    with torch.no_grad():
        for p in other:
            p += 1
    first, second = (make_optimizer(optimizer_class, run, params) for params in (whole, other))
    for step in range(others):
        set_gradients(other, run.gradients[step][rank])
        second.step()
    set_gradients(other, run.gradients[0][rank])
    second.reduced_gradient()  # of gradients that no step will use
    for step in range(len(run.gradients)):
        if step == when:
            # A copy, in which a state of views shows no change.
            given = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in first.state_dict().items()}
            before = {name: _plain(value) for name, value in given.items()}
            second.load_state_dict(given)
            differ = [] if all(map(torch.equal, whole, other)) else ["after loading"]
            start = np.concatenate([_plain(p).reshape(-1) for p in other])
        _step(first, whole, run, step, rank)
        if step >= when:
            _step(second, other, run, step, rank)
    flat, ends = (np.concatenate([_plain(p).reshape(-1) for p in params]) for params in (whole, other))
    differ += [] if np.array_equal(flat, ends) else ["at the end"]
    changed = [name for name, value in given.items() if not np.array_equal(before[name], _plain(value))]
    return Restored(
        f"the parameters {differ[0]} are not those of the optimizer that was saved" if differ else "",
        f"later steps changed {changed[0]!r} in the dict given to load_state_dict()" if changed else "",
        flat,
        bool(np.any(ends != start)),
        ends,
    )


@dataclass
class Refused:
    """What a rank did with a master of a wrong length, and then with the right one."""

    instead: str = sentence()


def _load_wrong(rank: int, world_size: int, optimizer_class: Any, run: Run, what: str, more: int) -> Refused:
    """Load a master shard with `more` numbers too many, then the right one."""
    params = run.make_parameters()
    optimizer = make_optimizer(optimizer_class, run, params)
    _step(optimizer, params, run, 0, rank)
    state = optimizer.state_dict()
    try:
        optimizer.load_state_dict({**state, "master": torch.zeros(len(state["master"]) + more)})
    except ValueError as error:
        if "master" not in str(error):
            return Refused(f"{what} raised a ValueError that does not name master: {error}")
    else:
        return Refused(f"{what} raised nothing, expected a ValueError that names it")
    try:
        optimizer.load_state_dict(state)
    except ValueError as error:
        return Refused(f"{what} raised a ValueError, but loading the right one does so, too: {error}")
    return Refused("")


def _restored(optimizer_class: Any, rng: np.random.Generator, whole: bool) -> Iterator[Case]:
    """Cases of a state that is loaded. whole: what comes after is judged, else the dict that was given."""
    runs = [(1, "Adam", 2, 0), (2, "Adam", 2, 0), (2, "Adam", 0, 2), (3, "SGD with momentum", 2, 1), (3, "AdamW", 2, 1)]
    for n, optimizer, when, others in runs:
        into = f"an optimizer that has made {others} step{'' if others == 1 else 's'}"
        also = f", loaded after {when} steps into {into}"
        run = make_run(rng, n, optimizer, [(3, 2), (4,)], steps=5, also=also, rates={1: 0.03})
        numbers = close(np.concatenate([p.reshape(-1) for p in unsharded(run)[-1]]), rtol=STEP_ERROR, atol=STEP_ERROR)
        expect = Restored(differ="", parameters=numbers) if whole else Restored(changed="", moved=True)
        yield Case(run.name, n, _restore, (optimizer_class, run, when, others), [expect] * n)


@check(STATE, points=0.5)
def restored_goes_on_bit_for_bit(ZeroOptimizer, *, rng):
    """Loading sets the parameters and replaces all that was there; then training goes on bit for bit."""
    yield from _restored(ZeroOptimizer, rng, whole=True)


@check(STATE, points=0.25)
def the_loaded_dict_stays(ZeroOptimizer, *, rng):
    """Steps after loading do not change the dict that was given."""
    yield from _restored(ZeroOptimizer, rng, whole=False)


@check(STATE, points=0.25)
def a_master_of_another_length_is_refused(ZeroOptimizer, *, rng):
    """A master that is too long or too short is a ValueError that names master; the right one is loaded."""
    for n, more in ((1, 1), (3, 1), (3, -1)):
        run = make_run(rng, n, "Adam", [(3, 2), (4,)], steps=1)
        what = f"loading a master that is one number too {'long' if more > 0 else 'short'}"
        must = f"{what} must raise a ValueError that names master on every rank."
        args = (ZeroOptimizer, run, what, more)
        yield Case(f"{run.name}, {what}", n, _load_wrong, args, [Refused("")] * n, must=must)
