"""Exercises 2 and 3: what a schedule costs in time and in memory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.checks.cases import Call, close
from autograder.checks.check import check

from .schedules import (
    TIME_ERROR,
    as_text,
    bubble_of,
    delayed,
    end_times,
    in_full,
    one_f_one_b,
    peaks_of,
    random_schedule,
)

#: (stages, micro-batches) of random orders.
PLAIN = [(3, 4), (2, 5), (1, 3)]
#: (stages, micro-batches, chunks) of the same.
CHUNKED = [(3, 3, 2), (2, 3, 3)]
#: Of processor time, for a schedule that waits on itself.
SECONDS = 5


def _drawn(rng: np.random.Generator, stages: int, each: bool = False) -> list[Any]:
    """Seconds of a forward, a backward and a W, no two of a stage alike; each: a list with one of each stage."""
    rows = [[float(t) for t in rng.permutation(np.arange(1, 9))[:3] / 8] for _ in range(stages)]
    return [list(column) for column in zip(*rows, strict=True)] if each else rows[0]


def _case(simulate: Callable, schedule: list, times: list) -> Call:
    """A schedule's simulation against its longest paths: [stage, entry, start or end]."""
    lasts = [time if isinstance(time, list) else [time] * len(schedule) for time in times]
    rows, seconds = in_full(schedule), dict(zip("FBW", lasts, strict=False))
    ends = end_times(rows, *lasts)
    over = [[(ends[kind, m, c * len(rows) + s], seconds[kind][s]) for kind, m, c in row] for s, row in enumerate(rows)]
    spans = np.array([[(end - long, end) for end, long in row] for row in over])
    given = f"seconds {', '.join(map(str, times))}"
    about = {"name": f"{len(rows)} stages, {given}", "shows": as_text(schedule), "what": "the list of (start, end)"}
    return Call(simulate, schedule, *times, gives=close(spans, TIME_ERROR), **about)


@check("11-ex2-simulate", points=1.5)
def simulation_starts_each_entry_at_once(simulate, *, rng):
    """Each entry starts as soon as its stage is free and what it needs is over; here F and B, with equal stages."""
    yield _case(simulate, [[("F", 0), ("F", 1), ("B", 0), ("B", 1)]] * 2, _drawn(rng, 2)[:2])
    for stages, count in PLAIN:
        yield _case(simulate, random_schedule(rng, stages, count, None), _drawn(rng, stages)[:2])


@check("11-ex2-simulate", points=0.5)
def stages_take_their_own_times(simulate, *, rng):
    """A list of times has one for each stage."""
    for stages, count in PLAIN[:2]:
        yield _case(simulate, random_schedule(rng, stages, count, None), _drawn(rng, stages, each=True)[:2])


@check("11-ex2-simulate", points=0.5)
def chunks_are_virtual_stages(simulate, *, rng):
    """Entries with a chunk follow the chain of virtual stages."""
    once_round = [("F", 0, 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)]
    yield _case(simulate, [once_round] * 2, _drawn(rng, 2)[:2])
    for stages, count, chunks in CHUNKED:
        yield _case(simulate, random_schedule(rng, stages, count, chunks), _drawn(rng, stages)[:2])


@check("11-ex2-simulate", points=0.5)
def weight_gradients_hold_up_nobody(simulate, *, rng):
    """W takes weight_time, needs B of the same micro-batch, and nothing needs W."""
    for stages, count in PLAIN[:2]:
        yield _case(simulate, random_schedule(rng, stages, count, None, kinds="FBW"), _drawn(rng, stages))


@check("11-ex2-simulate", points=0.25)
def bubble_is_the_idle_share(bubble_fraction, *, rng):
    """The bubble is the share of all stages' time, from 0 to the last end, in which they are idle."""
    for stages, count in PLAIN:
        schedule, (forward, backward, _) = random_schedule(rng, stages, count, None), _drawn(rng, stages)
        want = bubble_of(in_full(schedule), [forward] * stages, [backward] * stages)
        about = {"name": f"{stages} stages, seconds {forward}, {backward}", "shows": as_text(schedule)}
        gives = close(want, atol=TIME_ERROR)
        yield Call(bubble_fraction, schedule, forward, backward, gives=gives, what="the bubble", **about)


def _beyond_its_spans(simulate: Callable, bubble_fraction: Callable, *arguments: Any) -> Any:
    """The bubble less the idle share of the spans that `simulate` gives, right or not."""
    rows = simulate(*arguments)
    busy = sum(end - start for row in rows for start, end in row)
    return bubble_fraction(*arguments) - (1 - busy / (len(rows) * max(end for row in rows for _, end in row)))


@check("11-ex2-simulate", points=0.25)
def the_makespan_ends_on_any_stage(simulate, bubble_fraction, *, rng):
    """The makespan ends with the latest entry on any stage, and with W that need not be stage 0's."""
    for count in (1, 3):
        schedule = delayed(one_f_one_b(2, count), [0, 0])
        forward, backward, weight = _drawn(rng, 2)
        times = [forward, backward, [weight, weight + 2 * backward]]  # the last W of stage 1 ends last
        about = {"name": f"2 stages, seconds {', '.join(map(str, times))}", "shows": as_text(schedule)}
        what, gives = "the bubble less the idle share of simulate's spans", close(0.0, atol=TIME_ERROR)
        yield Call(_beyond_its_spans, simulate, bubble_fraction, schedule, *times, gives=gives, what=what, **about)


def _ends(simulate: Callable, *arguments: Any) -> Any:
    """`simulate(*arguments)`, or a TimeoutError once that has computed for some seconds: right answers take none."""
    if threading.current_thread() is not threading.main_thread():
        return simulate(*arguments)  # a signal needs the main thread

    def stop(*_: Any) -> None:
        raise TimeoutError(f"simulate had not ended after {SECONDS} s of computing")

    # Not SIGPROF, by which a worker that grades is bounded itself.
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return simulate(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@check("11-ex2-simulate", points=0.5)
def a_deadlock_is_reported(simulate, *, rng):
    """A schedule that waits on itself is a ValueError."""
    stages = int(rng.integers(2, 5))
    row = [("F", 0), ("F", 1), ("B", 0), ("B", 1)]
    swapped = [[("F", 0), ("B", 0), ("F", 1), ("B", 1)], *[row] * (stages - 1)]
    yield _case(simulate, [row] * stages, _drawn(rng, stages)[:2])
    for schedule in (swapped, [[("F", 0), ("W", 0), ("B", 0)]]):
        about = {"name": f"simulate, stages: {len(schedule)}", "shows": as_text(schedule)}
        yield Call(_ends, simulate, schedule, 1.0, 1.0, raises=ValueError, **about)


def _keeps_more_until_w(rng: np.random.Generator, stages: int, count: int, chunks: int | None) -> list[list[tuple]]:
    """A random order of F, B and W in which the peak of some stage is higher than if each B let go."""
    while True:
        schedule = random_schedule(rng, stages, count, chunks, kinds="FBW")
        until_b = peaks_of([entry for entry in row if entry[0] != "W"] for row in schedule)
        if peaks_of(schedule) != until_b:
            return schedule


def _peaks(peak_activations: Callable, schedule: list[list[tuple]]) -> Call:
    about = {"name": f"{len(schedule)} stages, a random order", "shows": as_text(schedule)}
    return Call(peak_activations, schedule, gives=close(peaks_of(schedule)), what="the list of peaks", **about)


@check("11-ex3-peaks", points=0.5)
def peaks_count_what_is_alive(peak_activations, *, rng):
    """Without W, the peak of each stage is the largest number of forwards whose `B` is not over."""
    for size in ((3, 5, None), (2, 3, 2)):
        yield _peaks(peak_activations, random_schedule(rng, *size))


@check("11-ex3-peaks", points=0.5)
def activations_are_held_until_w(peak_activations, *, rng):
    """Where the schedule has W, an activation is alive until its `W`."""
    for size in ((3, 5, None), (2, 3, 2)):
        yield _peaks(peak_activations, _keeps_more_until_w(rng, *size))
