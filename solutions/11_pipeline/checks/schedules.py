"""A schedule as a graph: its times, and what it keeps alive."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

#: Relative, on times and fractions.
TIME_ERROR = 1e-9


def _graph(schedule: list[list[tuple[str, int, int]]]) -> dict[tuple, list[tuple]]:
    """(kind, micro_batch, virtual stage) → what must be over before it, whether the schedule has that or not."""
    stages = len(schedule)
    last = stages * (1 + max(chunk for mine in schedule for _, _, chunk in mine)) - 1
    needs: dict[tuple, list[tuple]] = {}
    for stage, mine in enumerate(schedule):
        before: list[tuple] = []
        for kind, m, chunk in mine:
            v = chunk * stages + stage
            needs[kind, m, v] = list(before)
            if kind == "F" and v > 0:
                needs[kind, m, v].append(("F", m, v - 1))
            if kind == "B":
                needs[kind, m, v] += [("F", m, v)] + ([("B", m, v + 1)] if v < last else [])
            if kind == "W":
                needs[kind, m, v].append(("B", m, v))
            before = [(kind, m, v)]
    return needs


def end_times(
    schedule: list[list[tuple[str, int, int]]],
    forward: list[float],
    backward: list[float],
    weight: list[float] | None = None,
) -> dict | None:
    """When each (kind, micro_batch, virtual stage) is over, by the longest path; None if an entry waits for itself."""
    needs, stages = _graph(schedule), len(schedule)
    lasts = {"F": forward, "B": backward, "W": weight or [1.0] * stages}
    ends: dict[tuple, float] = {}
    left = {node: len(set(before)) for node, before in needs.items()}
    after: dict[tuple, list[tuple]] = {}
    for node, before in needs.items():
        for other in set(before):
            after.setdefault(other, []).append(node)
    ready = [node for node, count in left.items() if not count]
    while ready:
        node = ready.pop()
        ends[node] = max((ends[other] for other in needs[node]), default=0.0) + lasts[node[0]][node[2] % stages]
        for other in after.get(node, ()):
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    return ends if len(ends) == len(needs) else None


def bubble_of(
    schedule: list[list[tuple[str, int, int]]],
    forward: list[float],
    backward: list[float],
    weight: list[float] | None = None,
) -> float:
    """The idle share of all stages' time."""
    lasts = {"F": forward, "B": backward, "W": weight or [1.0] * len(schedule)}
    busy = sum(lasts[kind][s] for s, mine in enumerate(schedule) for kind, _, _ in mine)
    return 1 - busy / (len(schedule) * max(end_times(schedule, forward, backward, weight).values()))


def peaks_of(schedule: Iterable[Iterable[tuple]]) -> list[int]:
    """How many activations each stage keeps alive at the most: until their W, or B in a schedule without any."""
    kinds = [[entry[0] for entry in mine] for mine in schedule]
    change = {"F": 1, "B": 0, "W": -1} if any("W" in mine for mine in kinds) else {"F": 1, "B": -1}
    return [max(itertools.accumulate(change[kind] for kind in mine)) for mine in kinds]


def in_full(schedule: list[list[tuple]]) -> list[list[tuple[str, int, int]]]:
    """A schedule with chunk 0 where its entries name no chunk."""
    return [[(*entry, 0)[:3] for entry in mine] for mine in schedule]


def as_text(schedule: list[list[tuple]]) -> str:
    """A schedule as a student reads it: "stage 0: F0 F1 B0 B1; …", F0.1 with chunks."""
    rows = [" ".join(entry[0] + ".".join(map(str, entry[1:])) for entry in mine) for mine in schedule]
    return "; ".join(f"stage {s}: {row}" for s, row in enumerate(rows))


def as_evidence(schedule: list[list[tuple[str, int, int]]]) -> list[list[str]]:
    """A schedule as evidence."""
    return [[f"{kind}{m}.{chunk}" for kind, m, chunk in mine] for mine in schedule]


# ---- schedules of our own ----


def gpipe(stages: int, count: int) -> list[list[tuple[str, int]]]:
    """GPipe's schedule: all forwards, then all backwards."""
    return [[(kind, m) for kind in "FB" for m in range(count)] for _ in range(stages)]


def one_f_one_b(stages: int, count: int) -> list[list[tuple[str, int]]]:
    """Each stage runs a backward as soon as it holds stages − s forwards, a forward otherwise."""
    schedule = []
    for s in range(stages):
        forwards, backwards, mine = 0, 0, []
        while backwards < count:
            if forwards < count and forwards - backwards < stages - s:
                mine.append(("F", forwards))
                forwards += 1
            else:
                mine.append(("B", backwards))
                backwards += 1
        schedule.append(mine)
    return schedule


def delayed(schedule: list[list[tuple[str, int]]], late: list[int]) -> list[list[tuple[str, int]]]:
    """A schedule with its backwards in two parts: stage s runs each W so many of its B late."""
    rows = []
    for row, most in zip(schedule, late, strict=True):
        waiting: list[int] = []
        mine = []
        for kind, m in row:
            mine.append((kind, m))
            waiting += [m] * (kind == "B")
            if len(waiting) > most:
                mine.append(("W", waiting.pop(0)))
        rows.append([*mine, *(("W", m) for m in waiting)])
    return rows


def _before(m: int, order: list[int]) -> list[int]:
    """What stands before `m` in an order; nothing if there is none."""
    return order[: order.index(m)] if order else []


def random_schedule(
    rng: np.random.Generator,
    stages: int,
    count: int,
    chunks: int | None,
    agreed: bool = False,
    kinds: str = "FB",
) -> list[list[tuple]]:
    """An order in which every entry gets its turn: in each round any stage may take any entry that is ready.

    agreed: all stages take the forwards in one order and the backwards in one order, both drawn at random.
    """
    last, done = stages * (chunks or 1) - 1, set()
    turns = {kind: [int(m) for m in rng.permutation(count)] for kind in "FB"} if agreed else {}
    schedule: list[list[tuple]] = [[] for _ in range(stages)]
    while len(done) < len(kinds) * count * (last + 1):
        ready = [
            (kind, m, v)
            for kind, m, v in itertools.product(kinds, range(count), range(last + 1))
            if (kind, m, v) not in done
            and (v == 0 or kind != "F" or ("F", m, v - 1) in done)
            and (kind != "B" or (("F", m, v) in done and (v == last or ("B", m, v + 1) in done)))
            and (kind != "W" or ("B", m, v) in done)
            and all((kind, earlier, v) in done for earlier in _before(m, turns.get(kind, [])))
        ]
        kind, m, v = ready[rng.integers(len(ready))]
        done.add((kind, m, v))
        schedule[v % stages].append((kind, m) if chunks is None else (kind, m, v // stages))
    return schedule
