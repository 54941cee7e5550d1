"""The still of the race: four all-reduces of three sizes on 8 nodes of 8 GPUs, as lesson 02 times them.

Each node has a port for every GPU, so that no message waits for another one. Rounds within a node cost NVLink's prices,
the others the network's; halving and the tree begin with the partners in other nodes. A ring pays the network's
start-up only where it enters another node, as in NCCL's model.
"""

from __future__ import annotations

from autograder.lesson import notebook
from machines.cluster import NETWORK_STEP, NVLINK_STEP, find

CAPTION = "Four all-reduces in a race"
NODES, GPUS, PORTS = 8, 8, 8
#: Seconds per message and seconds per byte: NVLink inside a node, one port of the network between nodes.
INSIDE, NETWORK = (NVLINK_STEP.simple, 1 / find("H100").nvlink), (NETWORK_STEP.simple, 1 / find("H100").port)
SIZES = {"64 kB": 64e3, "4 MB": 4.096e6, "1 GB": 1e9}
#: In units of the picture: the space for labels, the longest bar, a bar's height, the space between sizes.
LEFT, WIDE, HIGH, GAP = 132, 320, 18, 34


def _times(nbytes: float) -> dict[str, float]:
    """Seconds of each algorithm."""
    lesson, n = notebook.functions("02_costs"), NODES * GPUS
    tree, halving = lesson["tree_time"], lesson["halving_time"]
    between = 2 * (NODES - 1)
    start_ups = (2 * (n - 1) - between) * INSIDE[0] + between * NETWORK[0]
    return {
        "one ring": start_ups + lesson["ring_time"](nbytes, n, 0, NETWORK[1]),
        "tree": tree(nbytes, NODES, *NETWORK) + tree(nbytes, GPUS, *INSIDE),
        "halving and doubling": halving(nbytes, NODES, *NETWORK) + halving(nbytes / NODES, GPUS, *INSIDE),
        "two levels": lesson["two_level_time"](nbytes, NODES, GPUS, PORTS, INSIDE, NETWORK),
    }


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said, y = [], [], 0
    for words, nbytes in SIZES.items():
        times = _times(nbytes)
        most = max(times.values())
        marks.append(f'<text class="still-title" x="0" y="{y + 14}">{words}</text>')
        for k, (name, seconds) in enumerate(times.items()):
            top, wide = y + 22 + k * (HIGH + 3), WIDE * seconds / most
            look = f"fill: var(--rank-{k}); opacity: 1"
            marks += [
                f'<text class="still-label" x="0" y="{top + 13}">{name}</text>',
                f'<rect class="still-box" x="{LEFT}" y="{top}" width="{wide:.1f}" height="{HIGH}" style="{look}"/>',
                f'<text class="still-label" x="{LEFT + wide + 6:.1f}" y="{top + 13}">{1e3 * seconds:.3g} ms</text>',
            ]
        said.append(f"{words}: " + ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in times.items()))
        y += 4 * (HIGH + 3) + GAP
    alt = f"Times of four all-reduces on {NODES} nodes of {GPUS} GPUs. {'. '.join(said)}."
    return f'<svg viewBox="0 0 {LEFT + WIDE + 80} {y}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt
