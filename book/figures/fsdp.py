"""The still of the sharded step: four units of two layers, waited for and gathered ahead."""

from __future__ import annotations

CAPTION = "A fully sharded step in time"
UNITS, LAYERS = 4, 2
COLORS = {"gather": "--rank-0", "reduce": "--rank-5", "forward": "--rank-2", "backward": "--rank-2"}
#: In units of the picture: the space for labels, a layer's forward, a row's height, the space between the two steps.
LEFT, WIDE, HIGH, GAP = 66, 8, 20, 34


def timeline(ahead: bool) -> list[tuple[str, int, float, float]]:
    """(what, unit, start, end) of each gather, computation and reduction; a layer's forward and gather take 1."""
    jobs: list[tuple[str, int, float, float]] = []
    network = compute = 0.0
    for kind, lasts, order in (("forward", 1, range(UNITS)), ("backward", 2, range(UNITS - 1, -1, -1))):
        there = {}
        for place, unit in enumerate(order):
            if unit not in there:
                start = max(network, compute)
                network = there[unit] = start + LAYERS
                jobs.append(("gather", unit, start, network))
            start = max(compute, there[unit])
            compute = start + lasts * LAYERS
            jobs.append((kind, unit, start, compute))
            if ahead and place + 1 < UNITS:
                begin = max(network, start)
                network = there[order[place + 1]] = begin + LAYERS
                jobs.append(("gather", order[place + 1], begin, network))
            if kind == "backward":
                begin = max(network, compute)
                network = compute = begin + LAYERS
                jobs.append(("reduce", unit, begin, network))
    return sorted(jobs, key=lambda job: job[2])


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said, y, width = [], [], 0, 0.0
    for ahead in (False, True):
        jobs = timeline(ahead)
        end = max(job[3] for job in jobs)
        title = f"{'gathered ahead' if ahead else 'waited for'}: {end:g} forwards of a layer"
        marks.append(f'<text class="still-title" x="0" y="{y + 14}">{title}</text>')
        for row, name in enumerate(("network", "compute")):
            marks.append(f'<text class="still-label" x="0" y="{y + 36 + row * (HIGH + 4)}">{name}</text>')
        for kind, unit, start, stop in jobs:
            top = y + 22 + (kind in ("forward", "backward")) * (HIGH + 4)
            look = f"fill: var({COLORS[kind]}); fill-opacity: {0.8 if kind == 'backward' else 0.45}; opacity: 1"
            x, wide = LEFT + start * WIDE, (stop - start) * WIDE
            marks += [
                f'<rect class="still-box" x="{x:g}" y="{top}" width="{wide:g}" height="{HIGH}" style="{look}"/>',
                f'<text class="still-label" x="{x + wide / 2 - 3:g}" y="{top + 14}">{unit}</text>',
            ]
        width = max(width, LEFT + end * WIDE)
        said.append(title)
        y += 2 * (HIGH + 4) + GAP
    for line, key in enumerate(
        ("network: all-gathers blue, reduce-scatters red", "compute: forward pale, backward full")
    ):
        marks.append(f'<text class="still-label" x="0" y="{y + 6 + 16 * line}">{key}</text>')
    alt = f"Network and computation of a fully sharded step of four units in time, {', and '.join(said)}."
    return f'<svg viewBox="0 0 {width + 6:g} {y + 30}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt
