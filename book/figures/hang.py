"""A hang under NCCL: what each part does from the missed call to the next step, and what the timeout leaves."""

from __future__ import annotations

from drawing import box, drawing, label

CAPTION = "A hang, and what two timeouts, with the minute for dumps, leave of what an interruption may cost"
#: In units of the picture: where the rows begin, a row, a bar, and the moments on the line.
LEFT, ROW, BAR, TOP = 52, 28, 20, 22
CALL, TIMEOUT, DUMPED, STARTED, LOADED, END = 86, 212, 246, 304, 333, 364
RANKS, HUNG = 4, 2
#: Minutes: the timeouts that are compared, PyTorch's for NCCL and the one that torchtitan sets after the first step.
TIMEOUTS = (10, 100 / 60)
#: Minutes that a watchdog sleeps before it ends its process, so that all ranks can write their dumps.
DUMP = 1


def still(budget: str) -> tuple[str, str]:
    """The picture and its text alternative. budget: the minutes that an interruption may cost in all."""
    marks = []
    rows = TOP + (RANKS + 2) * ROW
    moments = (CALL, "missed call", "middle"), (TIMEOUT, "timeout", "end"), (DUMPED, "+ 1 minute", "start")
    for x, text, anchor in moments:
        marks.append(f'<path class="still-box" d="M{x} {TOP - 4}V{rows - 6 - ROW * (x == DUMPED)}"/>')
        marks.append(label(x, TOP - 9, text, anchor=anchor))
    for rank in range(RANKS):
        y = TOP + ROW * rank
        marks.append(label(LEFT - 6, y + 14, f"rank {rank}", "still-title", "end"))
        marks += _bar(LEFT, CALL, y, "node-gpu", "step")
        if rank == HUNG:
            marks += _bar(CALL, DUMPED, y, "still-box", "stuck: has not called", (CALL + TIMEOUT) / 2)
        else:
            marks += _bar(CALL, TIMEOUT, y, "node-switch", "called, not completed")
            marks += _bar(TIMEOUT, DUMPED, y, "node-port", "dump")
        marks += _bar(STARTED, LOADED, y, "node-gpu", "load")
        marks += _bar(LOADED, END, y, "node-gpu", "step")
    y = TOP + ROW * RANKS
    marks.append(label(LEFT - 6, y + 14, "agent", "still-title", "end"))
    marks += _bar(LEFT, DUMPED, y, "still-box", "all live: nothing to do", (CALL + TIMEOUT) / 2)
    marks += _bar(DUMPED, STARTED, y, "node-port", "kill, start")
    marks.append(label(LEFT - 6, y + ROW + 14, "you", "still-title", "end"))
    marks += _bar(CALL, TIMEOUT, y + ROW, "still-box", "ncclras, py-spy")
    marks += _bar(TIMEOUT, END, y + ROW, "still-box", "dumps, torchfrtrace")
    whole = float(budget)
    marks.append(label(0, rows + 18, f"What a timeout leaves of {_clock(whole)}, to scale"))
    for row, minutes in enumerate(TIMEOUTS):
        y = rows + 28 + ROW * row
        noticed, dumped = (LEFT + (END - LEFT) * moment / whole for moment in (minutes, minutes + DUMP))
        marks.append(label(LEFT - 6, y + 14, _clock(minutes), "still-title", "end"))
        marks += _bar(LEFT, noticed, y, "node-switch", "wait")
        marks += _bar(noticed, dumped, y, "node-port", "")
        marks += _bar(dumped, END, y, "still-box", f"{_clock(whole - minutes - DUMP)} to restart")
    alt = (
        f"Four ranks, the agent and you over time. Ranks 0, 1 and 3 call an all-reduce, which does not complete; rank "
        f"{HUNG} is stuck and has not called it. The agent sees four living processes, and you can ask ncclras and "
        "py-spy. At the timeout the watchdogs of the others ask for dumps, which torchfrtrace reads, and a minute "
        "later they end their processes. The agent kills the rest and starts all ranks again, which load their "
        f"checkpoint and take the next step. Of {_clock(whole)} minutes that an interruption may cost, a timeout of "
        f"{_clock(TIMEOUTS[0])} leaves {_clock(whole - TIMEOUTS[0] - DUMP)}, one of {_clock(TIMEOUTS[1])} leaves "
        f"{_clock(whole - TIMEOUTS[1] - DUMP)}."
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
