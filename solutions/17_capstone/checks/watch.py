"""Lesson 17, exercise 6: one clock for all ranks, numbers out of line, and a step that is taken back."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checks.cases import Call
from autograder.checks.check import check
from autograder.checks.expect import each_rank

from .common import PIECES, equip, run_ranks, tensor_bytes

#: By so many intervals of a cadence rank 0's clock goes on before each call: exact hits, halves, a long pause.
STEPS = (0.5, 0.5, 1.0, 0.75, 2.5, 0.5, 0.25, 0.25)
#: And by which of these before the last calls.
DRAWN = (0.25, 0.5, 0.75, 1.0, 1.25, 2.5)


def _drive_cadence(
    rank: int, world_size: int, cadence_class: Any, path: str, cases: list[float], calls: int
) -> list[list[bool]]:
    equip(cadence_class)
    file, clocks = Path(path), {1: [50.0] * calls, 2: [100.0 + 10 * call for call in range(calls)]}
    if rank == 0:
        clocks = {0: json.loads(file.read_text())}
        file.unlink()  # before another rank can look: rank 0 alone knows what its clock will say
    dist.barrier()
    outcomes = []
    for number, seconds in enumerate(cases):
        # Rank 1's clock does not advance, rank 2's runs ahead. The first time is that of the construction.
        times = clocks[0][number] if rank == 0 else clocks[rank]
        now = [times[0]]
        cadence, said = cadence_class(seconds, clock=lambda now=now: now[0]), []
        for time in times[1:]:
            now[0] = time
            said.append(cadence.due())
        outcomes.append([value if isinstance(value, bool) else repr(value) for value in said])
        dist.barrier()
    outcomes.append([cadence_class(0).due(), cadence_class(1000).due()])
    return outcomes


def _due_at(times: list[float], seconds: float) -> list[bool]:
    """When so many seconds are over since the first of the times, or since the last time that they were."""
    last, found = times[0], []
    for time in times[1:]:
        found.append(time - last >= seconds)
        last = time if found[-1] else last
    return found


def _expect_due(cadence_class: Any, number_of_ranks: int, cases: list[float], times: list[list[float]]) -> None:
    """On all ranks due() says what rank 0's clock does."""
    wanted = [*map(_due_at, times, cases), [True, False]]
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        path = Path(root, "times.json")
        path.write_text(json.dumps(times))
        results = run_ranks(_drive_cadence, number_of_ranks, (cadence_class, str(path), cases, len(times[0])))
    for number, want in enumerate(wanted):
        case, what = f"N = {number_of_ranks}, time.monotonic", "what due() says, every 0 s and every 1000 s,"
        if number < len(cases):
            case = f"N = {number_of_ranks}, every {cases[number]:g} s"
            begin, *later = times[number]
            what = f"the list of what due() says at {later} on rank 0's clock, constructed at {begin:g},"
        for rank, said in each_rank(case, [mine[number] for mine in results]):
            rank.expect_equal(said, want, what=what)


@check("17-ex6-watch", points=0.75)
def one_clock_decides_for_all(Cadence, *, rng):
    """due() is the same on all ranks, however their clocks run: what rank 0's clock says."""
    # Neither the hit of an interval nor what follows a True is asked for here.
    cases = [4.0, float(rng.integers(1, 4))]
    times = [[0.0, *(seconds * part for part in (0.5, 0.75, float(rng.choice([1.25, 1.5]))))] for seconds in cases]
    _expect_due(Cadence, 3, cases, times)


@check("17-ex6-watch", points=0.5)
def the_time_counts_from_the_construction_or_the_last_true(Cadence, *, rng):
    """due() is True as soon as `seconds` have passed since the construction or the last True, and only then."""
    # Quarters of whole seconds, so that no sum is rounded.
    cases = [4.0, float(rng.integers(1, 4)), 0.0]
    steps = [[*STEPS, *rng.choice(DRAWN, 12 - len(STEPS))] for _ in cases]
    begins = [float(rng.integers(100, 1000)) for _ in cases]
    times = [
        [begin, *(begin + np.cumsum([(seconds or 1.0) * step for step in mine])).tolist()]
        for begin, seconds, mine in zip(begins, cases, steps, strict=True)
    ]
    _expect_due(Cadence, 1, cases, times)


@check("17-ex6-watch", points=0.5)
def unusual_values_are_seen_before_the_update(unusual, *, rng):
    """What is not finite is unusual, however short the history; of fewer than `least` values nothing else is asked."""
    few = [1.0, 1.0 + float(rng.uniform(0.1, 0.2)), 1.1]
    for value, expected in ((99.0, False), (math.inf, True), (math.nan, True)):
        yield Call(unusual, few, value, gives=expected, name=f"3 values, then {value}", what="what unusual says")
    again = [*few * 3, 1.0]
    yield Call(unusual, again, 9.0, 128, 6.0, 10, gives=True, name="10 values, as many as are needed, then 9")
    many = [*few * 10, 1.0]
    for value in (math.nan, math.inf):
        yield Call(unusual, many, value, gives=True, name=f"31 values, then {value}", what="what unusual says")


@check("17-ex6-watch", points=0.5)
def values_far_above_the_mean_are_unusual(unusual, *, rng):
    """More than `sigmas` times statistics.stdev above the mean of the last `window` values is unusual; less is not."""
    for count in (20, 64, 200):
        scale = float(rng.uniform(0.5, 50))
        history = [scale * float(rng.uniform(0.8, 1.2)) for _ in range(count)]
        history[: max(0, count - 128)] = [9 * scale] * max(0, count - 128)  # which no longer count
        # Of 4 values the deviation of a sample is 1.15 times that of a population.
        for window, sigmas, least in ((128, 6.0, 20), (20, 3.0, 20), (4, 6.0, 4)):
            mean, deviation = np.mean(history[-window:]), np.std(history[-window:], ddof=1)
            for times, expected in ((sigmas - 0.2, False), (sigmas + 0.2, True), (-20.0, False)):
                value = float(mean + times * deviation)
                name = f"{count} values, window {window}, {times:g} deviations above the mean"
                what = "what unusual says"
                yield Call(unusual, history, value, window, sigmas, least, gives=expected, name=name, what=what)


def _drive_guard(rank: int, guard_class: Any, losses: list[float], most: int) -> dict:
    """Inside a rank: a guard over a small optimizer that steps after each accepted loss, taken back `most` times."""
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
        elif len(backs) < most:
            to = guard.roll_back()
            same = _state_bytes(optimizer, w) == states.get(step - 2) if step > 1 else False
            backs.append([to - (step - 2), same, w.detach().tolist()])
            step = int(to) + 1
        else:
            break
    return {"said": said, "backs": backs}


def _drive_guards(rank: int, world_size: int, guard_class: Any, sequences: list[list[float]], most: int) -> list[dict]:
    return [_drive_guard(rank, guard_class, losses, most) for losses in sequences]


def _update(optimizer: Any, w: nn.Parameter, rank: int, step: int) -> None:
    w.grad = torch.full((7,), float(rank + 1 + step % 3))
    optimizer.step()


def _state_bytes(optimizer: Any, w: nn.Parameter) -> tuple:
    state = optimizer.state_dict()
    values = sorted((name, value) for name, value in state.items() if not isinstance(value, torch.Tensor))
    return (*tensor_bytes(state), str(values), w.detach().numpy().tobytes())


def _verdicts(losses: list[float], most: int) -> tuple[list[bool], list[int]]:
    """What a guard must say of these losses, each refusal taking one back; how many updates then remain."""
    accepted: list[float] = []
    said: list[bool] = []
    remain: list[int] = []
    for loss in losses:
        fine = math.isfinite(loss) and (not accepted or loss <= 1.5 * statistics.median(accepted[-5:]))
        said.append(fine)
        if fine:
            accepted.append(loss)
        elif len(remain) < most:
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


@check("17-ex6-watch", points=0.75)
def guard_judges_by_the_median(Guard, *, rng):
    """A loss is refused if it is not finite or above 1.5 × the median of the last five accepted ones."""
    sequences = {
        "a slow fall, then 1.6 times the median": [4.0, 3.9, 3.8, 3.7, 3.6, 6.1],
        "a single outlier below the limit": [4.0, 5.9, 2.0, 2.1, 2.0, 2.2, 3.2],
        "a long fall": [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 6.2],
        "slightly more than 1.5 times": [2.0, 2.0, 2.9, 2.0, 3.01],
        "the second loss": [4.0, 6.5],
        "even numbers of losses": [4.0, 2.0, 4.6],
        "nan": [4.0, 3.9, math.nan],
        "inf": [math.inf],
        "one loss that jumps": _with_a_jump(rng),
    }
    for case, seen, (verdicts, _) in _guarded(Guard, sequences, 0):
        for rank, got in each_rank(case, seen):
            rank.expect_equal(got["said"], verdicts, what=f"what accepts says of the losses {sequences[case]}")


@check("17-ex6-watch", points=0.5)
def the_step_before_is_restored(Guard, *, rng):
    """roll_back restores the state before the last accepted step's update, and says after which step that was."""
    drawn = [round(float(loss), 3) for loss in rng.uniform(3.5, 4, 4)]
    sequences = {"two rollbacks": [*drawn, math.inf, *drawn[:2], math.inf]}
    for case, seen, (_, remain) in _guarded(Guard, sequences, 2):
        for rank, got in each_rank(case, seen, evidence=lambda got: [back[:2] for back in got["backs"]]):
            rank.expect_equal(len(got["backs"]), len(remain), what="the number of rollbacks")
            for (off, restored, weights), updates in zip(got["backs"], remain, strict=True):
                rank.expect(off == 0, "roll_back returned the wrong step")
                text = "the state that roll_back restored is not that of before the step"
                # Compared once more out here, where the guard cannot reach the comparison.
                close = np.allclose(weights, _weights_after(updates), rtol=1e-5, atol=1e-6)
                rank.expect(bool(restored) and close, text)


@check("17-ex6-watch", points=0.5)
def the_loss_of_the_snapshot_is_forgotten(Guard, *, rng):
    """roll_back forgets the loss that was remembered with the snapshot, so that the same step is judged as before."""
    high = round(float(rng.uniform(5.0, 5.9)), 3)  # below 1.5 times 4, far above 1.5 times 3
    sequences = {"a loss to forget": [4.0, 2.0, math.inf, high]}
    for case, seen, (verdicts, _) in _guarded(Guard, sequences, 2):
        for rank, got in each_rank(case, seen):
            rank.expect_equal(got["said"], verdicts, what=f"what accepts says of the losses {sequences[case]}")


def _guarded(guard_class: Any, sequences: dict[str, list[float]], most: int) -> Iterator[tuple]:
    """(case, what the guard did on each rank, what it should have said, and how many updates should remain)."""
    results = run_ranks(_drive_guards, 2, (guard_class, list(sequences.values()), most))
    for number, (case, losses) in enumerate(sequences.items()):
        yield case, [outcomes[number] for outcomes in results], _verdicts(losses, most)
