"""Who acts on whom in a job: the scheduler, an agent per node, a store, ranks and two of their threads, a disk."""

from __future__ import annotations

from drawing import box, drawing, label

CAPTION = "The parts of a job on two nodes; arrows point from who acts to what is acted on"
#: In units of the picture: a node, a rank, and where the rows begin.
NODE, GAP, EDGE, RANK, RANKS = 172, 16, 8, 74, 2
WIDE = 2 * NODE + GAP
SCHEDULER, FRAME, AGENT, BUS, RANK_ROW, DISK = 4, 62, 76, 128, 144, 270
AGENT_WIDE, STORE, STORE_WIDE = 98, 120, 44
FRAME_HIGH, HIGH = 178, 26
#: From a rank to its watchdog, how wide and how high a thread is: the rank's own arrow to the disk passes beside it.
ENDS, THREAD, LOW = 20, 62, 18
#: What is on the disk, and who writes it.
FILES = (
    "rank 0: the checkpoint",
    "each rank: error.json and output, --log-dir",
    "each monitor: a dump, TORCH_FR_DUMP_TEMP_FILE",
)
#: Behind a label that crosses a line.
HALO = "paint-order:stroke;stroke:var(--pst-color-background);stroke-width:4px"


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks = [
        *(_tip(name, color) for name, color in (("launch-tip", "currentcolor"), ("store-tip", "var(--rank-1)"))),
        *_titled(0, SCHEDULER, WIDE, HIGH, "scheduler (Slurm)", "node-switch"),
        *_titled(STORE, AGENT, STORE_WIDE, HIGH, "store", "node-port"),
    ]
    ends = []
    for node in (0, 1):
        left = node * (NODE + GAP)
        marks.append(box(left, FRAME, NODE, FRAME_HIGH, "node-frame", 4))
        marks.append(label(left, FRAME - 6, f"node {node}", "still-title"))
        marks += _arrow(left + 57, SCHEDULER + HIGH, left + 57, AGENT)
        marks.append(label(left + 63, 44, "starts;"))
        marks.append(label(left + 63, 57, "SIGTERM to all"))
        marks += _titled(left + EDGE, AGENT, AGENT_WIDE, HIGH, "agent (torchrun)", "node-gpu")
        for place in range(RANKS):
            x = left + EDGE + place * (RANK + 8)
            marks += _titled(x, RANK_ROW, RANK, HIGH, f"rank {node * RANKS + place}", "node-gpu")
            top = RANK_ROW + HIGH + ENDS
            marks += _titled(x, top, THREAD, LOW, "watchdogs", "node-port")
            marks += _titled(x, top + LOW + 6, THREAD, LOW, "monitor", "node-port")
            marks += _arrow(x + 10, top, x + 10, RANK_ROW + HIGH)
            marks.append(label(x + 16, top - 6, "end"))
            start = x + 22 if place == 0 else left + EDGE + AGENT_WIDE - 4
            marks += _arrow(start, AGENT + HIGH, start, RANK_ROW)
            marks += _arrow(x + THREAD / 2, top + 2 * LOW + 6, x + THREAD / 2, DISK)
            marks += _arrow(x + RANK - 8, RANK_ROW + HIGH, x + RANK - 8, DISK)
            ends.append(x + RANK - 14)
        marks.append(label(left + EDGE + 28, AGENT + HIGH + 15, "looks, kills", style=HALO))
    marks += _arrow(EDGE + AGENT_WIDE, AGENT + HIGH / 2, STORE, AGENT + HIGH / 2, "store-tip")
    marks += _arrow(NODE + GAP + EDGE, AGENT + HIGH / 2, STORE + STORE_WIDE, AGENT + HIGH / 2, "store-tip")
    middle = STORE + STORE_WIDE / 2
    marks += _arrow(middle, BUS, middle, AGENT + HIGH, "store-tip")
    marks.append(_line(f"M{ends[0]} {BUS}H{ends[-1]}", "var(--rank-1)"))
    marks.append(label(ends[-1], BUS - 6, "meet", anchor="middle"))
    marks += [_line(f"M{x} {BUS}V{RANK_ROW}", "var(--rank-1)") for x in ends]
    marks.append(box(0, DISK, WIDE, 26 + 17 * len(FILES), "node-network"))
    marks.append(label(10, DISK + 18, "shared disk", "still-title"))
    marks += [label(10, DISK + 36 + 17 * row, text) for row, text in enumerate(FILES)]
    alt = (
        "The scheduler starts an agent, torchrun, on each of two nodes, and sends SIGTERM to it and to its ranks, "
        "unless told otherwise. Each agent starts the two ranks of its node, looks at them and kills them. Inside "
        "each rank watchdog threads, one per process group, can end it. "
        "Both agents and all ranks meet at a store, which is on the first node. On a shared disk rank 0 "
        "writes the checkpoint, each rank its error file and its output, where --log-dir says, and each rank's "
        "heartbeat monitor, a second thread, a dump, where TORCH_FR_DUMP_TEMP_FILE says."
    )
    return drawing(WIDE, DISK + 28 + 17 * len(FILES), marks), alt


def _titled(x: float, y: float, width: float, height: float, text: str, kind: str) -> list[str]:
    return [box(x, y, width, height, kind), label(x + width / 2, y + height / 2 + 4, text, anchor="middle")]


def _tip(name: str, color: str) -> str:
    size = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    return f'<marker id="{name}" {size} orient="auto"><path d="M0 0L8 4L0 8z" fill="{color}"/></marker>'


def _line(path: str, color: str, tip: str = "") -> str:
    return f'<path d="{path}" stroke="{color}" fill="none"{tip}/>'


def _arrow(x: float, y: float, to_x: float, to_y: float, tip: str = "launch-tip") -> list[str]:
    color = "var(--rank-1)" if tip == "store-tip" else "currentcolor"
    return [_line(f"M{x:g} {y:g}L{to_x:g} {to_y:g}", color, f' marker-end="url(#{tip})"')]
