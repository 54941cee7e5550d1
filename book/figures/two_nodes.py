"""Two nodes: their GPUs, the switch inside, a port per GPU, and the rails that join ports of the same place.

    :::{drawn-figure} two_nodes group=3,11
    :caption: A group with one rank per node uses one port of each
    :::

group: the GPUs that stand out, with their ports: `3,11`, or `0-7`. machine: a name of `machines.cluster`.
"""

from __future__ import annotations

from drawing import box, drawing, label

from machines.cluster import GB, find

CAPTION = "Two nodes of eight GPUs: inside, a switch joins all; outside, each GPU has a port and a rail"
#: In units of the picture: a column, a GPU's box, the switch, and where the parts of the upper node stand.
COLUMN, BOX, WIDE = 42, 30, 8 * 42
SWITCH, GPU, PORT, RAIL = 24, 62, 112, 150
HEIGHT = 2 * RAIL + 30


def members(group: str) -> set[int]:
    """The GPUs of a group: `3,11` or `0-7,12`; all of them stand out alike if it is empty."""
    found: set[int] = set()
    for part in filter(None, group.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def still(group: str = "", machine: str = "H100") -> tuple[str, str]:
    """The picture and its text alternative."""
    cluster, chosen = find(machine), members(group)
    nvlink, port = (f"{rate / GB:.0f} GB/s" for rate in (cluster.nvlink, cluster.port))
    marks = [
        label(10, 14, "node 0", "still-title"),
        label(10, HEIGHT - 4, "node 1", "still-title"),
        box(4, RAIL + 1, WIDE + 12, 28, "node-network"),
        label(10 + WIDE / 2, RAIL + 19, f"network: a rail per column, {port} per port", anchor="middle"),
    ]
    for node in (0, 1):

        def y(top: float, high: float, node: int = node) -> float:
            return HEIGHT - top - high if node else top

        marks.append(box(0, y(20, 114), WIDE + 20, 114, "node-frame"))
        marks.append(box(8, y(SWITCH, 22), WIDE + 4, 22, "node-switch"))
        marks.append(label(10 + WIDE / 2, y(SWITCH, 22) + 15, f"NVSwitch: NVLink, {nvlink} per GPU", anchor="middle"))
        for place in range(8):
            number, x = 8 * node + place, 10 + COLUMN * (place + 0.5)
            faint = " node-faint" if chosen and number not in chosen else ""
            for top, low, kind in (
                (SWITCH + 22, GPU, "nvlink"),
                (GPU + BOX, PORT, "pcie"),
                (PORT + 14, RAIL + 1, "rail"),
            ):
                ends = sorted((y(top, 0), y(low, 0)))
                marks.append(f'<path class="node-{kind}{faint}" d="M{x:g} {ends[0]:g}V{ends[1]:g}"/>')
            marks.append(box(x - BOX / 2, y(GPU, BOX), BOX, BOX, f"node-gpu{faint}"))
            marks.append(label(x, y(GPU, BOX) + 19, str(number), f"still-title{faint}", anchor="middle"))
            marks.append(box(x - 8, y(PORT, 14), 16, 14, f"node-port{faint}"))
    named = f" The GPUs {', '.join(map(str, sorted(chosen)))} and their ports stand out." if chosen else ""
    alt = (
        f"Two nodes, one above the other. In each, eight GPUs hang on NVSwitch by NVLink with {nvlink} each. "
        f"Each GPU also has a port of {port} to the network. The ports of GPUs with the same place in their nodes, "
        f"such as 0 and 8, are joined by a rail.{named}"
    )
    return drawing(WIDE + 20, HEIGHT, marks), alt
