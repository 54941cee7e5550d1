"""Lesson 17, exercise 6: metrics, their plot, and checkpoints by the clock."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import each_rank, expect_equal, expect_type, fail
from autograder.checking.stage import call_inside
from autograder.checks.capstone.common import equip, run_ranks, strict, strict_or_fail


@check("17-ex6-watch")
def metrics_are_strict_json(append_metrics, *, rng):
    """One line a row, strict JSON, null for what is not finite; nothing lost, nothing changed."""
    rows = [
        {"step": 1, "loss": float(rng.uniform(1, 5)), "grad_norm": 0.5, "step_seconds": 1e-3},
        {"step": 2, "loss": math.nan, "grad_norm": math.inf, "step_seconds": 2.5e-7},
        {"event": "rollback", "step": 3, "to": 1, "loss": -math.inf},
        {"step": 2, "loss": 3.0, "grad_norm": None, "step_seconds": 0.0},
    ]
    wanted = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        for path in (Path(folder, "a.jsonl"), f"{folder}/b.jsonl"):
            for number, row in enumerate(rows, start=1):
                given = dict(row)
                append_metrics(path, given)
                text, case = Path(path).read_text(), f"row {number}"
                if repr(given) != repr(row):
                    fail("the row was changed", case, "changed")
                if not text.endswith("\n") or text.count("\n") != number:
                    shown = [text.endswith("\n"), text.count("\n")]
                    fail(f"after {number} rows the file should hold {number} lines", case, shown)
                try:
                    got = [strict(line) for line in text.splitlines()]
                except ValueError as error:
                    fail(f"{text.splitlines()[-1]!r} is not strict JSON", case, str(error)[:20])
                if got != wanted[:number]:
                    fail(f"{row} was written as {text.splitlines()[-1]!r}", case, [str(one) for one in got])


def _drawn(plot_metrics: Any, path: Path) -> tuple[str, list[dict]]:
    """What kind of thing was drawn, and what there is to see on each of its axes."""
    import ranks

    figure = plot_metrics(path)
    if not isinstance(figure, ranks.Figure) or not str(figure.alt).strip():
        return type(figure).__name__, []
    axes = [
        {
            "lines": [[np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)] for line in ax.lines],
            "labels": [ax.get_xlabel(), ax.get_ylabel()],
        }
        for ax in figure.axes
    ]
    return "", axes


@check("17-ex6-watch")
def plots_show_each_step_once(plot_metrics, *, rng):
    """Loss and gradient norm over the steps in order; the last line of a step counts; events are no steps."""
    rows = [
        (1, 4.0, 1.0),
        (2, 3.5, None),
        (3, 3.0, 0.5),
        "event",
        (2, 3.25, 2.0),
        (3, None, 0.75),
        (5, 2.5, 0.5),
        (4, 2.75, 1.5),
    ]
    wanted = {1: (4.0, 1.0), 2: (3.25, 2.0), 3: (math.nan, 0.75), 4: (2.75, 1.5), 5: (2.5, 0.5)}
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        path = Path(folder, "metrics.jsonl")
        names = ("step", "loss", "grad_norm", "step_seconds")
        event = {"event": "rollback", "step": 4, "to": 1, "loss": 99.0}
        lines = [event if row == "event" else dict(zip(names, (*row, 0.1), strict=True)) for row in rows]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        kind, axes = call_inside(_drawn, plot_metrics, path)
    case = "8 lines, 5 steps"
    if kind:
        fail("expected a ranks.Figure with an alt text", case, kind)
    if len(axes) < 2:
        fail(f"the figure has {len(axes)} axes, expected 2", case, len(axes))
    for place, (name, ax) in enumerate(zip(("loss", "grad_norm"), axes, strict=False)):
        drawn = ax["lines"]
        want = [np.array(sorted(wanted), float), np.array([wanted[step][place] for step in sorted(wanted)])]
        if not any(
            all(np.array_equal(a, b, equal_nan=True) for a, b in zip(line, want, strict=True)) for line in drawn
        ):
            shown = [[x.tolist(), y.tolist()] for x, y in drawn]
            fail(f"no line of axes {place} shows {name} against the steps 1 to 5", case, shown)
        if "step" not in ax["labels"][0] or not ax["labels"][1].strip():
            fail(f"axes {place} lack a label", case, ax["labels"])


def _drive_cadence(rank: int, world_size: int, cadence_class: Any, cases: list[tuple]) -> list[list[bool]]:
    equip(cadence_class)
    outcomes = []
    for seconds, times in cases:
        now = [50.0 * rank]
        cadence, said = cadence_class(seconds, clock=lambda now=now: now[0]), []
        for time in times:
            # Rank 1's clock stands still, rank 2's runs ahead.
            now[0] = {0: time, 1: 50.0, 2: 100.0 + 10 * time}[rank]
            said.append(cadence.due())
        outcomes.append([value if isinstance(value, bool) else repr(value) for value in said])
        dist.barrier()
    outcomes.append([cadence_class(0).due(), cadence_class(1000).due()])
    return outcomes


@check("17-ex6-watch")
def one_clock_decides_for_all(Cadence, *, rng):  # noqa: N803
    """Rank 0's clock, from the construction or the last True, on all ranks alike."""
    start = float(rng.integers(1, 4))
    cases = [
        (5.0, [1, 4.5, 5, 6, 9, 10, 14, 15, 27, 28, 31.5, 32, 36], [0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0]),
        (start, [start / 2, start, start * 1.5, start * 3], [0, 1, 0, 1]),
        (0.0, [0, 0, 1, 1], [1, 1, 1, 1]),
    ]
    for world_size in (3, 1):
        results = run_ranks(_drive_cadence, world_size, (Cadence, [case[:2] for case in cases]))
        for number, (seconds, times, wanted) in enumerate([*cases, (0.0, [], [1, 0])]):
            case = f"N = {world_size}, every {seconds:g} s" if times else f"N = {world_size}, time.monotonic"
            got = [mine[number] for mine in results]
            what = (
                f"the list of what due() says at {times}" if times else "what due() says, every 0 s and every 1000 s,"
            )
            for rank, said in each_rank("every 5 s" if number == 0 else case, got):
                rank.expect_equal(said, [bool(value) for value in wanted], what=what)


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


def _drive_scripted(rank: int, world_size: int, train: Any, root: str) -> tuple[list[str], list[int]]:
    equip(train, Cadence=_Scripted)
    _Scripted.calls.clear()
    run = train(rank, world_size, 4, f"{root}/scripted", 2, checkpoint_seconds=7)
    return list(_Scripted.calls), [entry["step"] for entry in run["checkpoints"]]


@check("17-ex6-watch")
def training_is_watched_and_saved_by_the_clock(train, *, rng):
    """Rank 0 writes a line a step; with checkpoint_seconds all ranks ask once a step, and save what is due."""
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        for rank, (calls, saved) in each_rank(
            "4 steps, step 2 asked for", run_ranks(_drive_scripted, 2, (train, root))
        ):
            text = "what train did with its Cadence (it is asked once a step, in a step that is saved anyway, too)"
            rank.expect_equal(calls, ["made", *["asked"] * 4], what=text)
            rank.expect_equal(saved, [2, 3], what="the list of steps that were saved when the third is due")
        results = run_ranks(_drive_watched, 2, (train, root))
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
