"""Who watches whom in a job: the scheduler, an agent per node, the store, the ranks with their watchdogs, the disk."""

from __future__ import annotations

from drawing import box, drawing, label

CAPTION = "The parts of a job on two nodes. Arrows point from who acts to what is acted on"
#: In units of the picture: a node, a rank, and where the rows begin.
NODE, GAP, RANK, RANKS = 206, 20, 40, 4
WIDE = 2 * NODE + GAP
SCHEDULER, FRAME, AGENT, RANK_ROW, DISK = 4, 66, 84, 158, 262
FRAME_HIGH = 166
#: Behind a label that crosses a line.
HALO = "paint-order:stroke;stroke:var(--pst-color-background);stroke-width:4px"


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks = [
        '<marker id="launch-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="currentcolor"/></marker>',
        *_titled(0, SCHEDULER, WIDE, 28, "scheduler (Slurm)", "node-switch"),
    ]
    for node in (0, 1):
        left = node * (NODE + GAP)
        marks.append(box(left, FRAME, NODE, FRAME_HIGH, "node-frame", 4))
        middle = left + NODE / 2
        marks += _arrow(middle, SCHEDULER + 28, middle, AGENT)
        marks.append(label(middle + 6, 50, "starts, SIGTERM"))
        agent = 96 if node == 0 else NODE - 20
        marks += _titled(left + 10, AGENT, agent, 28, "agent (torchrun)", "node-gpu")
        for place in range(RANKS):
            x = left + 10 + place * (RANK + 9)
            marks += _arrow(x + RANK / 2, AGENT + 28, x + RANK / 2, RANK_ROW)
            marks += _titled(x, RANK_ROW, RANK, 28, f"rank {node * RANKS + place}", "node-gpu")
            marks += _titled(x, RANK_ROW + 30, RANK, 18, "watch", "node-port")
        marks.append(label(left + 12, AGENT + 46, "starts, looks every 0.1 s, kills", style=HALO))
        marks.append(label(left + 12, FRAME + FRAME_HIGH - 8, f"node {node}", "still-title"))
    store, wide = 128, 68
    marks += _titled(store, AGENT, wide, 28, "store", "node-port")
    marks += _arrow(10 + 96, AGENT + 14, store, AGENT + 14)
    marks += _arrow(NODE + GAP + 10, AGENT + 14, store + wide, AGENT + 14)
    marks += _titled(0, DISK, WIDE, 28, "shared disk: the checkpoint, logs, error files, dumps", "node-network")
    for node in (0, 1):
        middle = node * (NODE + GAP) + NODE / 2
        marks += _arrow(middle, RANK_ROW + 50, middle, DISK)
    alt = (
        "The scheduler starts an agent, torchrun, on each of two nodes and sends it SIGTERM. Each agent starts the "
        "four ranks of its node, looks at them ten times a second and kills them. Inside each rank a watchdog thread "
        "looks at its operations. Both agents meet at a store, which is on the first node. All ranks write to a shared "
        "disk: the checkpoint, logs, error files and dumps."
    )
    return drawing(WIDE, DISK + 32, marks), alt


def _titled(x: float, y: float, width: float, height: float, text: str, kind: str) -> list[str]:
    return [box(x, y, width, height, kind), label(x + width / 2, y + height / 2 + 4, text, anchor="middle")]


def _arrow(x: float, y: float, to_x: float, to_y: float) -> list[str]:
    line = f'd="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="currentcolor" fill="none"'
    return [f'<path {line} marker-end="url(#launch-tip)"/>']
