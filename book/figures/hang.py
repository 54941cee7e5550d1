"""A hang under NCCL: what each part does from the missed call to the next step, and what the timeout leaves."""

from __future__ import annotations

from drawing import box, drawing, label

CAPTION = "A hang, and what two timeouts leave of what an interruption may cost on average"
#: In units of the picture: where the rows begin, a row, a bar, and the moments on the line.
LEFT, ROW, BAR, TOP = 52, 28, 20, 22
CALL, TIMEOUT, DUMPED, KILLED, STARTED, LOADED, END = 86, 214, 252, 294, 326, 355, 386
RANKS, HUNG = 4, 2
#: Minutes: the timeouts that are compared, PyTorch's for NCCL and the one that torchtitan sets after the first step.
TIMEOUTS = (10, 100 / 60)
#: Minutes that a watchdog sleeps before it ends its process, so that all ranks can write their dumps, and minutes from
#: the agent's SIGTERM to its SIGKILL.
DUMP, KILL = 1, 0.5


def still(budget: str) -> tuple[str, str]:
    """The picture and its text alternative. budget: the minutes that an interruption may cost in all."""
    marks = []
    rows = TOP + (RANKS + 2) * ROW
    moments = (CALL, "missed call"), (TIMEOUT, "timeout"), (DUMPED, f"+ {_clock(DUMP)}"), (KILLED, f"+ {_clock(KILL)}")
    for x, text in moments:
        anchor = "end" if x == TIMEOUT else "middle"
        marks.append(f'<path class="still-box" d="M{x} {TOP - 4}V{rows - 6 - ROW * (x in (DUMPED, KILLED))}"/>')
        marks.append(label(x, TOP - 9, text, anchor=anchor))
    for rank in range(RANKS):
        y = TOP + ROW * rank
        marks.append(label(LEFT - 6, y + 14, f"rank {rank}", "still-title", "end"))
        marks += _bar(LEFT, CALL, y, "node-gpu", "step")
        if rank == HUNG:
            marks += _bar(CALL, TIMEOUT, y, "still-box", "stuck: has not called")
            marks += _bar(DUMPED, KILLED, y, "still-box", "stuck")
        else:
            marks += _bar(CALL, TIMEOUT, y, "node-switch", "called, not completed")
        marks += _bar(TIMEOUT, DUMPED, y, "node-port", "dump")
        marks += _bar(STARTED, LOADED, y, "node-gpu", "load")
        marks += _bar(LOADED, END, y, "node-gpu", "step")
    y = TOP + ROW * RANKS
    marks.append(label(LEFT - 6, y + 14, "agent", "still-title", "end"))
    marks += _bar(LEFT, DUMPED, y, "still-box", "all live: nothing to do", (CALL + TIMEOUT) / 2)
    marks += _bar(DUMPED, KILLED, y, "node-port", "kill")
    marks += _bar(KILLED, STARTED, y, "node-gpu", "start")
    marks.append(label(LEFT - 6, y + ROW + 14, "you", "still-title", "end"))
    marks += _bar(CALL, TIMEOUT, y + ROW, "still-box", "ncclras, py-spy")
    marks += _bar(TIMEOUT, END, y + ROW, "still-box", "dumps, torchfrtrace")
    whole = float(budget)
    marks.append(label(0, rows + 18, f"Above, not to scale. Below, to scale: what a timeout leaves of {_clock(whole)}"))
    for row, minutes in enumerate(TIMEOUTS):
        y, left = rows + 28 + ROW * row, whole - minutes - DUMP - KILL
        noticed, ended = (LEFT + (END - LEFT) * moment / whole for moment in (minutes, minutes + DUMP + KILL))
        marks.append(label(LEFT - 6, y + 14, _clock(minutes), "still-title", "end"))
        marks += _bar(LEFT, noticed, y, "node-switch", "wait")
        marks += _bar(noticed, ended, y, "node-port", _clock(DUMP + KILL))
        marks += _bar(ended, END, y, "still-box", f"{_clock(left)} to restart")
    alt = (
        f"Four ranks, the agent and you over time. Ranks 0, 1 and 3 call an all-reduce, which does not complete; rank "
        f"{HUNG} is stuck and has not called it. The agent sees four living processes, and you can ask ncclras and "
        "py-spy. At the timeout a watchdog asks for dumps, which all four ranks write, the stuck one too, and "
        "torchfrtrace reads. A minute later the watchdogs of ranks 0, 1 and 3 end their processes. The agent sends "
        f"SIGTERM to rank {HUNG}, kills it {60 * KILL:.0f} seconds later, and starts all ranks again, which load their "
        f"checkpoint and take the next step. Of {_clock(whole)} minutes that an interruption may cost on average, a "
        f"timeout of {_clock(TIMEOUTS[0])} leaves {_clock(whole - TIMEOUTS[0] - DUMP - KILL)}, one of "
        f"{_clock(TIMEOUTS[1])} leaves {_clock(whole - TIMEOUTS[1] - DUMP - KILL)}."
    )
    return drawing(END + 2, rows + 28 + ROW * len(TIMEOUTS), marks), alt


def _clock(minutes: float) -> str:
    """Minutes and seconds, such as 1:40."""
    seconds = round(60 * minutes)
    return f"{seconds // 60}:{seconds % 60:02d}"


def _bar(start: float, end: float, y: float, kind: str, text: str, middle: float = 0) -> list[str]:
    """A bar with a text in its middle, or around another place."""
    text = label(middle or (start + end) / 2, y + 14, text, anchor="middle")
    return [box(start, y, end - start, BAR, kind, 2), text]
