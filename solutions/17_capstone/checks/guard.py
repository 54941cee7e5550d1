"""Lesson 17, exercises 6 and 7: a step whose loss is out of line is taken back."""

from __future__ import annotations

import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.check import EVENTS, check
from autograder.checking.expect import each_rank, expect_equal, fail

from .common import PIECES, equip, run_ranks, strict_or_fail, tensor_bytes, what_it_says


def _drive_guard(rank: int, guard_class: Any, losses: list[float]) -> dict:
    """Inside a rank: a guard over a small optimizer that makes a step after each accepted loss."""
    equip(guard_class)
    w = nn.Parameter(torch.arange(7.0))
    optimizer = PIECES.ZeroOptimizer([w], torch.optim.Adam, lr=0.1)
    guard, said, backs, states = guard_class(optimizer), [], [], {}
    step = 1
    for loss in losses:
        states[step - 1] = _state_bytes(optimizer, w)
        verdict = guard.accepts(step, loss)
        said.append(bool(verdict) if isinstance(verdict, (bool, np.bool_)) else repr(verdict))
        if verdict:
            _update(optimizer, w, rank, step)
            step += 1
        elif len(backs) < 2:
            to = guard.roll_back()
            same = _state_bytes(optimizer, w) == states.get(step - 2) if step > 1 else False
            backs.append([to - (step - 2), same, w.detach().tolist()])
            step = int(to) + 1
        else:
            break
    return {"said": said, "backs": backs}


def _drive_guards(rank: int, world_size: int, guard_class: Any, sequences: list[list[float]]) -> list[dict]:
    return [_drive_guard(rank, guard_class, losses) for losses in sequences]


def _update(optimizer: Any, w: nn.Parameter, rank: int, step: int) -> None:
    w.grad = torch.full((7,), float(rank + 1 + step % 3))
    optimizer.step()


def _state_bytes(optimizer: Any, w: nn.Parameter) -> tuple:
    state = optimizer.state_dict()
    values = sorted((name, value) for name, value in state.items() if not isinstance(value, torch.Tensor))
    return (*tensor_bytes(state), str(values), w.detach().numpy().tobytes())


def _verdicts(losses: list[float]) -> tuple[list[bool], list[int]]:
    """What a guard must say of these losses, each refusal taking one back; how many updates then remain."""
    accepted: list[float] = []
    said: list[bool] = []
    remain: list[int] = []
    for loss in losses:
        fine = math.isfinite(loss) and (not accepted or loss <= 1.5 * statistics.median(accepted[-5:]))
        said.append(fine)
        if fine:
            accepted.append(loss)
        elif len(remain) < 2:
            accepted.pop()
            remain.append(len(accepted))
        else:
            break
    return said, remain


def _weights_after(updates: int) -> np.ndarray:
    """The small optimizer's weights after this many updates, by torch's Adam on the mean of both ranks' gradients."""
    w = nn.Parameter(torch.arange(7.0))
    optimizer = torch.optim.Adam([w], lr=0.1)
    for step in range(1, updates + 1):
        w.grad = torch.full((7,), 1.5 + step % 3)
        optimizer.step()
    return w.detach().numpy().copy()


def _with_a_jump(rng: np.random.Generator) -> list[float]:
    """Losses that fall, within a tenth, one of them three times as high, and a nan at the end."""
    losses = [4 * 0.98**step * float(rng.uniform(0.9, 1.1)) for step in range(12)]
    losses[int(rng.integers(4, 11))] *= 3  # a fine one follows: rollbacks in a row restore the same
    return [*losses, math.nan]


@check("17-ex6-watch", points=2.5)
def guard_judges_by_the_median(Guard, *, rng):
    """A loss is refused if it is not finite or above 1.5 × the median of the last five; the step before is restored."""
    sequences = {
        "a slow fall, then 1.6 times the median": [4.0, 3.9, 3.8, 3.7, 3.6, 6.0, 3.6, math.nan, 3.6, math.inf],
        "a single outlier below the limit": [4.0, 5.9, 2.0, 2.1, 2.0, 2.2, 3.2, 2.0, math.inf, 2.1, 8.0],
        "a long fall": [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 6.2, 2.0, -math.inf, 2.0, 1.9, 3.5],
        "exactly 1.5 times": [2.0, 2.0, 3.0, 2.0, 3.0000001, 3.0, math.nan, 3.0, 5.0],
        "the second loss": [4.0, 6.5, 4.0, 6.5, 4.0, math.nan],
        "even numbers of losses": [4.0, 2.0, 4.6, 2.0, 1.0, math.nan, 1.0, 99.0],
        "one loss that jumps": _with_a_jump(rng),
    }  # fmt: skip
    results = run_ranks(_drive_guards, 2, (Guard, list(sequences.values())))
    for number, (case, losses) in enumerate(sequences.items()):
        seen = [outcomes[number] for outcomes in results]
        everything = [got["said"] for got in results[0]]
        verdicts, remain = _verdicts(losses)
        for rank, got in each_rank(case, seen, evidence=lambda got: [back[:2] for back in got["backs"]]):
            what = f"what accepts says of the losses {losses}"
            rank.expect_equal(got["said"], verdicts, what=what, evidence=everything)
            rank.expect_equal(len(got["backs"]), len(remain), what="the number of rollbacks")
            for (off, restored, weights), updates in zip(got["backs"], remain, strict=True):
                rank.expect(off == 0, "roll_back returned the wrong step")
                text = "the state that roll_back restored is not that of before the step"
                # Compared once more out here, where the guard cannot reach the comparison.
                close = np.allclose(weights, _weights_after(updates), rtol=1e-5, atol=1e-6)
                rank.expect(bool(restored) and close, text)


def _drive_rollbacks(rank: int, world_size: int, guard_class: Any) -> dict:
    """Inside a rank: a guard is asked too early, then twice in a row, then after losses that it has accepted."""
    equip(guard_class)
    w = nn.Parameter(torch.arange(7.0))
    optimizer = PIECES.ZeroOptimizer([w], torch.optim.Adam, lr=0.1)
    guard, said, backs = guard_class(optimizer), [], []
    before: tuple = ()

    def accepts(step: int, loss: float) -> None:
        said.append(bool(guard.accepts(step, loss)))

    def roll_back() -> None:
        to: list[int] = []
        kind, text = what_it_says(lambda: to.append(guard.roll_back()))
        same = _state_bytes(optimizer, w) == before
        backs.append({"kind": kind, "text": text, "to": [*to], "same": same, "weights": w.detach().tolist()})

    roll_back()
    accepts(1, 4.0)
    _update(optimizer, w, rank, 1)
    before = _state_bytes(optimizer, w)
    accepts(2, 2.0)
    _update(optimizer, w, rank, 2)
    roll_back()
    _update(optimizer, w, rank, 2)  # as a step does: in place
    roll_back()
    accepts(2, 6.1)  # what is left is the loss of step 1
    for again in (5.9, 3.9):
        accepts(2, again)
        _update(optimizer, w, rank, 2)
        roll_back()
    return {"said": said, "backs": backs}


@check("17-ex6-watch", points=0.5, fixed=EVENTS)
def rollbacks_restore_the_last_snapshot(Guard):
    """Rollbacks in a row restore the same snapshot; a guard makes three, and none before a loss was accepted."""
    calls = {
        "before any loss was accepted": False,
        "after two losses were accepted": True,
        "again, after an update": True,
        "for the third time": True,
        "for the fourth time": False,
    }
    case = "rollbacks"
    for rank, got in each_rank(case, run_ranks(_drive_rollbacks, 2, (Guard,)), evidence=_seen):
        for (when, works), back in zip(calls.items(), got["backs"], strict=True):
            kind, text = back["kind"], back["text"]
            said = f"raised {kind}: {text}" if kind else f"returned {back['to'][0]}"
            if works:
                rank.expect(back["to"] == [1], f"roll_back {when} {said}, expected 1")
                close = np.allclose(back["weights"], _weights_after(1), rtol=1e-5, atol=1e-6)
                rank.expect(
                    back["same"] and close, f"roll_back {when} did not restore the state before step 2's update"
                )
            else:
                refused = kind == "RuntimeError" and "rollback" in text
                rank.expect(refused, f"roll_back {when} {said}, expected a RuntimeError about the rollback")
        what = "what accepts says of 4.0 and 2.0, of 6.1 and 5.9 after 2.0 was forgotten, and of 3.9 after 5.9 was"
        rank.expect_equal(got["said"], [True, True, False, True, True], what=what)


def _seen(got: dict) -> list:
    return [got["said"], *([back["kind"], back["to"], back["same"]] for back in got["backs"])]


def _drive_spikes(rank: int, world_size: int, train: Any, root: str, spikes: list[tuple], seed: int) -> dict:
    equip(train)
    plain = train(rank, world_size, 5, f"{root}/plain", 2, seed=seed)
    clean = train(rank, world_size, 5, None, None, seed=seed, guard=True)
    runs = []
    for number, (at, factor) in enumerate(spikes):
        dist.barrier()
        options = {"seed": seed, "guard": True, "spike_step": at, "spike_factor": factor}
        options["metrics_path"] = f"{root}/{number}.jsonl"
        made: list[dict] = []
        where = f"{root}/{number}"
        said = what_it_says(lambda o=options, m=made, w=where: m.append(train(rank, world_size, 5, w, 2, **o)))
        runs.append(made[0] if made else {"raised": said})
        if said[0]:
            break  # the other ranks may not have raised
    return {"plain": plain, "clean": clean, "runs": runs}


@check("17-ex7-watched", points=2)
def spikes_are_taken_back(train_watched, *, rng):
    """A spike causes one rollback, at the next step; then hashes and losses are those of the run without it."""
    spikes = [(2, 1000.0), (1, math.inf), (4, math.nan)]
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        results = run_ranks(_drive_spikes, 2, (train_watched, root, spikes, int(rng.integers(12))))
        logs = [Path(root, f"{number}.jsonl") for number in range(len(spikes))]
        lines = [
            [strict_or_fail(line) for line in log.read_text().splitlines()] if log.is_file() else [] for log in logs
        ]
    for rank, mine in enumerate(results):
        plain, clean = mine["plain"], mine["clean"]
        if clean["rollbacks"] != [] or clean["hashes"] != plain["hashes"] or clean["losses"] != plain["losses"]:
            fail("a guard must leave a clean run alone", "a clean run", [len(clean["rollbacks"]), clean["losses"]])
        for (at, factor), run, log in zip(spikes, mine["runs"], lines, strict=False):
            case = f"a spike of {factor:g} in step {at}"
            if "raised" in run:
                kind, text = run["raised"]
                fail(f"rank {rank} raised {kind}: {text}", case, ["raised", kind, at], kind)
            _expect_taken_back(case, rank, at, plain, run, log)


def _expect_taken_back(case: str, rank: int, at: int, plain: dict, run: dict, log: list[dict]) -> None:
    """One rollback, to the step before the spike; then the run without a spike, also in its checkpoint and metrics."""
    steps = [(entry.get("step", -99), entry.get("to", -99)) for entry in run["rollbacks"]]
    if steps != [(at + 1, at - 1)]:
        shifts = [[step - at, to - at] for step, to in steps]
        fail(f"expected one rollback, from step {at + 1} to {at - 1}; rank {rank} has {steps}", case, shifts)
    loss = run["rollbacks"][0].get("loss", 0.0)
    if math.isfinite(loss) and loss < 5:
        fail(f"the rollback's loss is {loss}", case, "loss")
    shifts = [step - at for step in run["steps"]]
    expect_equal(
        case, run["steps"], plain["steps"], what=f"the list of rank {rank}'s steps", evidence=["steps", shifts]
    )
    for name in ("losses", "hashes", "grad_norms", "norms", "state_bytes"):
        for step, ours, theirs in zip(run["steps"], run[name], plain[name], strict=True):
            if ours != theirs:
                evidence = [name, step - at]
                fail(f"{name} at step {step} is {ours}, without the spike {theirs}", case, evidence)
    saved = [[(entry["step"], entry["sha256"]) for entry in some["checkpoints"]] for some in (run, plain)]
    if saved[0] != saved[1]:
        fail("the checkpoint is not that of the run without a spike", case, ["saved", [step for step, _ in saved[0]]])
    events = [line for line in log if "event" in line]
    finite = loss if math.isfinite(loss) else None
    if events != [{"event": "rollback", "step": at + 1, "to": at - 1, "loss": finite}]:
        fail(f"the metrics hold the events {events}, expected this one rollback", case, ["events", len(events)])
    steps = [line["step"] for line in log if "event" not in line]
    if steps != [*range(1, at + 1), *range(at, 6)]:
        fail(f"the metrics hold the steps {steps}", case, ["logged", [step - at for step in steps]])
