"""The time line of a hang under NCCL: from the call that one rank does not make to the next step after the restart."""

from __future__ import annotations

from drawing import box, drawing, label

CAPTION = "A hang, from the missed call to the next step. Time is not to scale"
#: In units of the picture: where the rows begin, a row, a bar, and the moments on the line.
LEFT, ROW, BAR, TOP = 62, 30, 20, 44
CALL, TIMEOUT, KILLED, STARTED, LOADED, END = 120, 262, 286, 348, 384, 432
MINUTES = 10
RANKS, HUNG = 4, 2


def still(minutes: str = str(MINUTES)) -> tuple[str, str]:
    """The picture and its text alternative. minutes: the timeout of the group."""
    marks = []
    bottom = TOP + (RANKS + 1) * ROW
    for x, text in ((CALL, "0:00"), (TIMEOUT, f"{int(minutes)}:00")):
        marks.append(f'<path class="still-box" d="M{x} {TOP - 12}V{bottom}"/>')
        marks.append(label(x, TOP - 18, text, anchor="middle"))
    for rank in range(RANKS):
        y = TOP + ROW * rank
        marks.append(label(LEFT - 8, y + 14, f"rank {rank}", "still-title", "end"))
        marks += _bar(LEFT, CALL, y, "node-gpu", "step")
        if rank == HUNG:
            marks += _bar(CALL, KILLED, y, "still-box", "stuck in its data loader")
        else:
            marks += _bar(CALL, TIMEOUT, y, "node-switch", "waits, GPU at 100 %")
        if rank != HUNG:
            marks += _bar(TIMEOUT, KILLED, y, "node-port", "end")
        marks += _bar(STARTED, LOADED, y, "node-gpu", "load")
        marks += _bar(LOADED, END, y, "node-gpu", "step")
    y = TOP + ROW * RANKS
    marks.append(label(LEFT - 8, y + 14, "agent", "still-title", "end"))
    marks += _bar(LEFT, TIMEOUT, y, "still-box", "all processes live: nothing to do")
    marks += _bar(TIMEOUT, STARTED, y, "node-port", "kill, start")
    marks.append(label(TIMEOUT + 4, 12, "watchdogs: dump, end"))
    alt = (
        f"Four ranks and the agent over time. At 0:00 ranks 0, 1 and 3 call an all-reduce and rank {HUNG} is stuck in "
        f"its data loader. For {int(minutes)} minutes the GPUs of the others wait, at 100 percent, and the agent sees "
        "four living processes. Then their watchdogs write a dump and end their processes. The agent kills the rest "
        "and starts all ranks again, which load the checkpoint and take the next step."
    )
    return drawing(END + 4, bottom + 4, marks), alt


def _bar(start: float, end: float, y: float, kind: str, text: str) -> list[str]:
    return [box(start, y, end - start, BAR, kind, 2), label((start + end) / 2, y + 14, text, anchor="middle")]
