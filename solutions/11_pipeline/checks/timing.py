"""Exercise 6: stages that work at the same time.

The check judges by hand: it needs the events of all ranks at once, and starts a second launch only where the first one
is late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from autograder.checks.check import check
from autograder.checks.expect import fail
from autograder.checks.stage import run_ranks

from .schedules import TIME_ERROR, bubble_of, end_times, gpipe, in_full, one_f_one_b
from .stages import Pipeline, loss_of, make_pipeline

#: Seconds of a forward and of a backward, and how far bubble and makespan may be from the prediction.
SLEEPS, BUBBLE_ERROR, MAKESPAN_ERROR = (0.03, 0.06), 0.05, 0.10
TRIES = 3


def _step_once(rank: int, world_size: int, step: Callable, pipelines: list[Pipeline]) -> list[list]:
    """Inside a rank: what its stage did in one step of each pipeline."""
    logs = []
    for pipeline in pipelines:
        stage, rows = pipeline.build(rank), pipeline.rows()
        dist.barrier()
        step(stage, rows, pipeline.schedule, loss_of, pipeline.hidden)
        logs.append([kind for kind, _ in stage.probe.log if kind != "B"])
    dist.barrier()
    return logs


def _expect_run(names: list[str], pipelines: list[Pipeline], results: list) -> None:
    """What is timed must have run: a step that does nothing never waits."""
    for number, (name, pipeline) in enumerate(zip(names, pipelines, strict=True)):
        for rank, row in enumerate(pipeline.schedule):
            got, want = results[rank][number], ["F" if kind == "F" else "W" for kind, _ in row]
            if got != want:
                fail(
                    f"rank {rank} runs {got.count('F')} forwards and {got.count('W')} backwards, or not in order",
                    name,
                    got,
                )


def _events(ledger: Any) -> list[list[tuple[float, str, Any]]]:
    """One rank's work, calls and ends of calls in order of time, cut at its barriers."""
    barriers = sorted(m.start for m in ledger if m.call == "barrier")
    events = [(span.start, "work", span.name) for span in ledger.spans]
    for message in ledger:
        if not message.is_collective:
            events.append((message.start, "call", message))
            if message.end is not None:
                events.append((message.end, "end", message))
    events.sort(key=lambda event: event[0])
    parts: list[list] = [[] for _ in range(len(barriers) + 1)]
    for event in events:
        parts[sum(start < event[0] for start in barriers)].append(event)
    return parts


def _replayed(parts: list[list[tuple[float, str, Any]]], seconds: dict[str, float]) -> float:
    """The makespan if work took `seconds` and messages no time: who waited for whom, without the clock."""
    from ranks.ledger import pairs

    partner = {}
    for send, receive in pairs([e[2] for part in parts for e in part if e[1] == "call"]):
        partner[id(send)], partner[id(receive)] = receive, send
    clock, position, called = [0.0] * len(parts), [0] * len(parts), {}
    moved = True
    while moved:
        moved = False
        for rank, part in enumerate(parts):
            while position[rank] < len(part):
                _, what, thing = part[position[rank]]
                if what == "work":
                    clock[rank] += seconds[thing]
                elif what == "call":
                    called[id(thing)] = clock[rank]
                elif id(thing) in partner:  # a receive ends after its send began, a send after its receive did
                    if id(partner[id(thing)]) not in called:
                        break
                    clock[rank] = max(clock[rank], called[id(partner[id(thing)])])
                position[rank] += 1
                moved = True
    return max(clock)


def _measured(ledger: Any, world_size: int) -> tuple[float, float]:
    """Makespan and bubble by the clock."""
    makespan = max(span.end for span in ledger.spans) - min(span.start for span in ledger.spans)
    busy = sum(span.end - span.start for span in ledger.spans)
    return makespan, 1 - busy / (world_size * makespan)


@check("11-ex6-pipeline-step", points=1.25)
def stages_work_at_the_same_time(pipeline_step, *, rng):
    """A step lasts as long as its schedule: results leave at once, and a stage waits only for what its entry needs."""
    n, count = 4, 8
    # In the last one, neighbors take activations late on one side and gradients late on the other.
    names = ["1F1B", "GPipe", "GPipe, but the last stage runs 1F1B"]
    schedules = [one_f_one_b(n, count), gpipe(n, count), [*gpipe(n, count)[1:], one_f_one_b(n, count)[-1]]]
    pipelines = [make_pipeline(rng, schedule) for schedule in schedules]
    results = run_ranks(_step_once, n, (pipeline_step, pipelines))
    _expect_run(names, pipelines, results)
    parts = [_events(results.ledger.of(rank)) for rank in range(n)]
    late = [_replayed([mine[c + 1] for mine in parts], {"F": 1.0, "B": 2.0}) for c in range(len(pipelines))]
    for name, pipeline, seconds in zip(names, pipelines, late, strict=True):
        planned = _makespan(pipeline.schedule, 1.0, 2.0)
        if seconds > (1 + TIME_ERROR) * planned and not _in_time(pipeline_step, name, pipeline):
            text = f"the step takes {seconds / planned:.2f} times as long as its schedule"
            when = "with forwards of 30 ms and backwards of 60 ms"
            fail(f"{when}, {text}: stages wait for messages that they do not need yet", name, late)


def _makespan(schedule: list[list[tuple]], forward: float, backward: float) -> float:
    return max(end_times(in_full(schedule), [forward] * len(schedule), [backward] * len(schedule)).values())


def _in_time(pipeline_step: Callable, name: str, pipeline: Pipeline) -> bool:
    """Does a run with sleeps keep to the prediction, by the clock, in one of some tries?"""
    n, slow = len(pipeline.schedule), replace(pipeline, sleep=SLEEPS)
    bubble = bubble_of(in_full(pipeline.schedule), [SLEEPS[0]] * n, [SLEEPS[1]] * n)
    makespan = _makespan(pipeline.schedule, *SLEEPS)
    for _ in range(TRIES):
        results = run_ranks(_step_once, n, (pipeline_step, [slow]))
        _expect_run([name], [slow], results)
        seconds, idle = _measured(results.ledger, n)
        if abs(idle - bubble) <= BUBBLE_ERROR and abs(seconds - makespan) <= MAKESPAN_ERROR * makespan:
            return True
    return False
