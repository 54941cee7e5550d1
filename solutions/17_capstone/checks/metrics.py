"""Lesson 17, exercises 6 and 7: metrics, and checkpoints by the clock."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch.distributed as dist

from autograder.checking.check import EVENTS, check
from autograder.checking.expect import each_rank, expect_equal, expect_type, fail

from .common import equip, run_ranks, strict_or_fail

#: By so many intervals of a cadence rank 0's clock goes on before each call: exact hits, halves, a long pause.
STEPS = (0.5, 0.5, 1.0, 0.75, 2.5, 0.5, 0.25, 0.25)
#: And by which of these before the last calls.
DRAWN = (0.25, 0.5, 0.75, 1.0, 1.25, 2.5)


def _drive_cadence(rank: int, world_size: int, cadence_class: Any, path: str, cases: list[float]) -> list[list[bool]]:
    equip(cadence_class)
    file, clocks = Path(path), {1: [50.0] * 12, 2: [100.0 + 10 * call for call in range(12)]}
    if rank == 0:
        clocks = {0: json.loads(file.read_text())}
        file.unlink()  # before another rank can look: rank 0 alone knows what its clock will say
    dist.barrier()
    outcomes = []
    for number, seconds in enumerate(cases):
        # Rank 1's clock does not advance, rank 2's runs ahead.
        times, now = clocks[0][number] if rank == 0 else clocks[rank], [clocks[rank][0] if rank else 0.0]
        cadence, said = cadence_class(seconds, clock=lambda now=now: now[0]), []
        for time in times:
            now[0] = time
            said.append(cadence.due())
        outcomes.append([value if isinstance(value, bool) else repr(value) for value in said])
        dist.barrier()
    outcomes.append([cadence_class(0).due(), cadence_class(1000).due()])
    return outcomes


def _due_at(times: list[float], seconds: float) -> list[bool]:
    """When so many seconds are over since time 0, or since the last time that they were."""
    last, found = 0.0, []
    for time in times:
        found.append(time - last >= seconds)
        last = time if found[-1] else last
    return found


@check("17-ex6-watch", points=1)
def one_clock_decides_for_all(Cadence, *, rng):
    """due() follows rank 0's clock on all ranks, from the construction or the last True."""
    # Quarters of whole seconds, so that no sum is rounded.
    cases = [4.0, float(rng.integers(1, 4)), 0.0]
    steps = [[*STEPS, *rng.choice(DRAWN, 12 - len(STEPS))] for _ in cases]
    times = [
        np.cumsum([(seconds or 1.0) * step for step in mine]).tolist()
        for seconds, mine in zip(cases, steps, strict=True)
    ]
    wanted = [*map(_due_at, times, cases), [True, False]]
    for world_size in (3, 1):
        with tempfile.TemporaryDirectory(prefix="check-") as root:
            path = Path(root, "times.json")
            path.write_text(json.dumps(times))
            results = run_ranks(_drive_cadence, world_size, (Cadence, str(path), cases))
        for number, want in enumerate(wanted):
            case, what = f"N = {world_size}, time.monotonic", "what due() says, every 0 s and every 1000 s,"
            if number < len(cases):
                case = f"N = {world_size}, every {cases[number]:g} s" if number else "every 4 s"
                what = f"the list of what due() says at {times[number]} on rank 0's clock"
            for rank, said in each_rank(case, [mine[number] for mine in results]):
                rank.expect_equal(said, want, what=what)


def _drive_watched(rank: int, world_size: int, train: Any, root: str) -> list[dict]:
    equip(train)
    path, outcomes = f"{root}/metrics.jsonl", []
    often = train(rank, world_size, 4, f"{root}/often", 2, metrics_path=path, checkpoint_seconds=0)
    again = f"{root}/often/step_00000003"
    plans = [
        (6, None, 5, {"resume_from": again}),
        (6, f"{root}/seldom", 5, {"resume_from": again, "checkpoint_seconds": 1000}),
        (5, f"{root}/clock", None, {"resume_from": again, "checkpoint_seconds": 0}),
        (5, None, None, {"resume_from": again, "checkpoint_seconds": 0}),
        (5, None, None, {"resume_from": again, "spike_step": 4, "spike_factor": math.nan}),
    ]
    for steps, folder, at, options in plans:
        dist.barrier()
        outcomes.append(train(rank, world_size, steps, folder, at, metrics_path=path, **options))
    return [often, *outcomes]


class _Scripted:
    """In the place of Cadence: due when it is asked for the third time. calls: what was done with it, in order."""

    calls: ClassVar[list[str]] = []

    def __init__(self, *_: Any, **__: Any):
        self.calls.append("made")

    def due(self) -> bool:
        self.calls.append("asked")
        return self.calls.count("asked") == 3


def _drive_scripted(
    rank: int, world_size: int, train: Any, root: str, at: int | None, options: dict
) -> tuple[list[str], list[int]]:
    equip(train, Cadence=_Scripted)
    _Scripted.calls.clear()
    run = train(rank, world_size, 4, root, at, checkpoint_seconds=7, **options)
    return list(_Scripted.calls), [entry["step"] for entry in run["checkpoints"]]


@check("17-ex7-watched", points=1, fixed=EVENTS)
def training_is_watched_and_saved_by_the_clock(train_watched):
    """Rank 0 writes one line per step; with checkpoint_seconds all ranks ask once per step, and save what is due."""
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        for rank, (calls, saved) in each_rank(
            "4 steps, step 2 asked for", run_ranks(_drive_scripted, 2, (train_watched, f"{root}/scripted", 2, {}))
        ):
            text = "what train did with its Cadence (it is asked once a step, in a step that is saved anyway, too)"
            rank.expect_equal(calls, ["made", *["asked"] * 4], what=text)
            rank.expect_equal(saved, [2, 3], what="the list of steps that were saved when the third is due")
        # Steps 1 and 2; 3 is refused; then 2, 3 and 4.
        spike = {"guard": True, "spike_step": 2, "spike_factor": math.nan}
        results = run_ranks(_drive_scripted, 2, (train_watched, f"{root}/back", None, spike))
        for rank, (calls, saved) in each_rank("4 steps, the third is taken back once", results):
            text = "what train did with its Cadence (it is not asked in a step whose loss is refused)"
            rank.expect_equal(calls, ["made", *["asked"] * 5], what=text)
            rank.expect_equal(saved, [2], what="the list of steps that were saved when the third question is due")
        results = run_ranks(_drive_watched, 2, (train_watched, root))
        saved = [[entry["step"] for entry in run["checkpoints"]] for run in results[0]]
        wanted = [[1, 2, 3, 4], [], [5], [4, 5], [], []]
        names = (
            "every 0 s and step 2",
            "no folder",
            "every 1000 s and step 5",
            "every 0 s",
            "every 0 s, no folder",
            "no folder",
        )
        for number, (name, got, want) in enumerate(zip(names, saved, wanted, strict=True)):
            case = f"{name}, resumed" if number else name
            expect_equal(case, got, want, what="the list of steps that were saved", evidence=saved)
        path = Path(root, "metrics.jsonl")
        if not path.is_file():
            fail("metrics_path was not written", "metrics", "no file")
        lines = [strict_or_fail(line) for line in path.read_text().splitlines()]
    steps = [line.get("step") for line in lines]
    want = [step for run in results[0] for step in run["steps"]]
    expect_equal("metrics", steps, want, what="the list of steps in the metrics")
    values = {"loss": "losses", "grad_norm": "grad_norms", "step_seconds": "seconds"}
    rows = [{key: run[name][i] for key, name in values.items()} for run in results[0] for i in range(len(run["steps"]))]
    for line, row in zip(lines, rows, strict=True):
        row = {key: value if math.isfinite(value) else None for key, value in row.items()}
        if set(line) != {"step", *values} or any(line[key] != row[key] for key in ("loss", "grad_norm")):
            fail(f"the line {line} differs from what train returned: {row}", "metrics", [sorted(line), line["step"]])
        expect_type("metrics", line["step_seconds"], (int, float), what="step_seconds")
