"""Figures of a ledger: when each rank sent, received or took part in a collective, and in which round."""

from __future__ import annotations

import math
from collections import Counter

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from ranks.figure import Figure, color
from ranks.ledger import Ledger, Message, Span, pairs, schedule
from ranks.playable import to_json

#: With more messages than this, arrows would hide the bars.
_MAX_ARROWS = 120


def draw(ledger: Ledger, world_size: int, title: str = "What each rank did", stuck: str = "") -> Figure:
    """One row and one color a rank. Upper half of a row: sends; lower half: receives; whole height: collectives.

    An arrow goes from the start of a send to the end of its receive. Collectives that overlap share the height. If the
    worker marked spans, they fill the upper third of each row, above the messages. The time is in milliseconds since
    the run's first event. Calls and spans that have not ended are not drawn, with one exception: if the run never
    ended, `stuck` says why, and the calls in which ranks wait are empty frames that reach the right edge.
    """
    messages = [m for m in ledger if m.end is not None]
    spans = [s for s in ledger.spans if s.end is not None]
    events: list[Message | Span] = [*messages, *spans]
    ends = [event.end for event in events if event.end is not None]
    length = (max(ends) - min(event.start for event in events)) * 1e3 if events else 0.0
    waiting = [m for m in ledger if stuck and m.end is None and m.waiting_at]
    height = 0.55 if not spans else 0.85
    fig = Figure(
        alt=" ".join(filter(None, [_alt([*messages, *waiting], spans, world_size, length), stuck])),
        ledger=to_json(ledger, world_size, stuck),
        figsize=(7.5, 1.3 + height * world_size),
    )
    ax = fig.subplots()
    rows = _Rows([*messages, *waiting], bool(spans))
    for m in messages:
        until = m.start if m.until is None else m.until
        ax.broken_barh(
            [(m.start * 1e3, max((until - m.start) * 1e3, length / 300))],  # wide enough to be seen
            rows.place(m),
            facecolor=color(m.rank),
            alpha=0.45 if m.is_receive else 1.0,
            hatch="///" if m.is_collective else None,
            edgecolor="white",
            linewidth=0.4,
        )
    _draw_spans(ax, spans, length)
    _draw_arrows(ax, messages, rows)
    _draw_waiting(ax, waiting, rows, length)
    _label(ax, [*messages, *waiting], world_size, title)
    return fig


def _draw_waiting(ax: Axes, waiting: list[Message], rows: _Rows, length: float) -> None:
    """An empty frame from the beginning of each call that never ends to the right edge, and what it waits for."""
    last = max((m.start * 1e3 for m in waiting), default=0.0)
    edge = max(length, last, 0.1) * 1.6
    for m in waiting:
        low, high = rows.place(m)
        ax.broken_barh([(m.start * 1e3, edge)], (low, high), facecolor="none", edgecolor=color(m.rank), ls="--", lw=1.2)
        whom = "" if m.peer is None else f" {'to' if m.is_send else 'from'} rank {m.peer}"
        ax.text(edge, low + high / 2, f"waits in {m.call}{whom}  ", ha="right", va="center", fontsize=8)
    if waiting:
        ax.set_xlim(right=edge)


def _draw_arrows(ax: Axes, messages: list[Message], rows: _Rows) -> None:
    """An arrow for each message that was received, unless there are too many."""
    crossed = pairs(messages)
    for send, receive in crossed if len(crossed) <= _MAX_ARROWS else []:
        if receive.end is not None:
            ax.annotate(
                "",
                xy=(receive.end * 1e3, sum(rows.place(receive)) - rows.half / 2),
                xytext=(send.start * 1e3, rows.place(send)[0] + rows.half / 2),
                arrowprops={"arrowstyle": "-|>", "color": color(send.rank), "lw": 0.9, "shrinkA": 0, "shrinkB": 0},
            )


#: The part of a row that spans fill, if there are any: its top and its height.
_SPAN_TOP, _SPAN_HEIGHT = -0.44, 0.28


class _Rows:
    """Where in its rank's row the bar of a message is; the axis points down."""

    def __init__(self, messages: list[Message], below_spans: bool):
        self.top = -0.34 if not below_spans else _SPAN_TOP + _SPAN_HEIGHT + 0.02
        #: Half of the height for messages: the upper half is for sends, the lower one for receives.
        self.half = (0.34 - self.top) / 2
        self._lanes = _lanes([m for m in messages if m.is_collective])
        self._most = {m.rank: 0 for m in messages}
        for m in messages:
            self._most[m.rank] = max(self._most[m.rank], self._lanes.get(id(m), 0))

    def place(self, message: Message) -> tuple[float, float]:
        """The top and the height of a message's bar."""
        if message.is_collective:
            height = 2 * self.half / (self._most[message.rank] + 1)
            return message.rank + self.top + height * self._lanes[id(message)], height
        return message.rank + self.top + (0 if message.is_send else self.half), self.half * 0.95


def _lanes(collectives: list[Message]) -> dict[int, int]:
    """id(message) → the first lane of its rank that is free when it starts."""
    lanes: dict[int, int] = {}
    busy_until: dict[int, list[float]] = {}
    for m in sorted(collectives, key=lambda m: m.start):
        mine = busy_until.setdefault(m.rank, [])
        lane = next((k for k, end in enumerate(mine) if end <= m.start), len(mine))
        mine[lane : lane + 1] = [math.inf if m.until is None else m.until]
        lanes[id(m)] = lane
    return lanes


def _draw_spans(ax: Axes, spans: list[Span], length: float) -> None:
    """Pale bars, with their names where these fit; an edge sets a span off from the one that it is in.

    length: of the whole axis, in milliseconds.
    """
    for span in spans:
        if span.end is None:
            continue
        left, width = span.start * 1e3, (span.end - span.start) * 1e3
        top = span.rank + _SPAN_TOP
        pale = to_rgba(color(span.rank), 0.25)
        ax.broken_barh([(left, width)], (top, _SPAN_HEIGHT), facecolor=pale, edgecolor=color(span.rank), lw=0.6)
        if width > 0.011 * length * len(span.name):
            ax.text(left + width / 2, top + _SPAN_HEIGHT / 2, span.name, ha="center", va="center", fontsize=8)


def draw_rounds(ledger: Ledger, world_size: int, title: str = "Who sent to whom") -> Figure:
    """One row and one color a rank, one column a round: an arrow for each message, in the column of its round.

    The rounds are those of `Ledger.rounds`; unlike times, they are the same in every run of a program.
    """
    numbered = schedule(ledger)
    last = max((number for _, number in numbered), default=0)
    fig = Figure(
        alt=_alt_rounds(numbered, world_size),
        ledger=to_json(ledger, world_size),
        figsize=(max(3.5, 1.8 + 0.9 * last), 1.3 + 0.45 * world_size),
    )
    ax = fig.subplots()
    for rank in range(world_size):
        ax.axhline(rank, color=color(rank), lw=5, alpha=0.3, zorder=0)
    for send, number in numbered:
        ax.annotate(
            "",
            xy=(number - 0.1, send.peer),
            xytext=(number - 0.9, send.rank),
            arrowprops={"arrowstyle": "-|>", "color": color(send.rank), "lw": 1.6, "shrinkA": 0, "shrinkB": 0},
        )
    ax.set_title(title)
    ax.set_xlabel("round")
    ax.set_xlim(0, max(last, 1))
    ax.set_xticks([number - 0.5 for number in range(1, last + 1)], [str(number) for number in range(1, last + 1)])
    ax.set_yticks(range(world_size), [f"rank {rank}" for rank in range(world_size)])
    ax.set_ylim(world_size - 0.5, -0.5)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    for number in range(1, last):
        ax.axvline(number, color="#bbbbbb", lw=0.8, ls=":")
    return fig


def _alt_rounds(numbered: list[tuple[Message, int]], world_size: int) -> str:
    """The text alternative: for each round, which rank sent to which."""
    by_round: dict[int, list[str]] = {}
    for send, number in numbered:
        by_round.setdefault(number, []).append(f"{send.rank} to {send.peer}")
    said = "; ".join(f"round {number}: {', '.join(sends)}" for number, sends in sorted(by_round.items()))
    return f"Messages of {world_size} ranks by round. {said or 'No messages'}."


def _label(ax: Axes, messages: list[Message], world_size: int, title: str) -> None:
    ax.set_title(title)
    ax.set_xlabel("time (ms)")
    ax.set_yticks(range(world_size), [f"rank {rank}" for rank in range(world_size)])
    ax.set_ylim(world_size - 0.5, -0.5)
    ax.spines[["top", "right"]].set_visible(False)
    gray = "#555555"
    kinds = [
        (any(m.is_send for m in messages), Patch(facecolor=gray, label="send")),
        (any(m.is_receive for m in messages), Patch(facecolor=gray, alpha=0.45, label="receive")),
        (
            any(m.is_collective for m in messages),
            Patch(facecolor=gray, hatch="///", edgecolor="white", label="collective"),
        ),
    ]
    handles = [handle for there, handle in kinds if there]
    if handles:
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _alt(messages: list[Message], spans: list[Span], world_size: int, length: float) -> str:
    """The text alternative: how many calls of each kind a rank made, what it marked, and how long the run took."""
    rows = []
    for rank in range(world_size):
        mine = [m for m in messages if m.rank == rank]
        marked = Counter(span.name for span in spans if span.rank == rank)
        counts = [
            (sum(m.is_send for m in mine), "send"),
            (sum(m.is_receive for m in mine), "receive"),
            (sum(m.is_collective for m in mine), "collective"),
        ]
        calls = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
        said = ", ".join(calls + [f"{count} × {name}" for name, count in marked.items()]) or "no messages"
        rows.append(f"rank {rank}: {said}")
    return f"Timeline of {world_size} ranks over {length:.2f} ms. " + "; ".join(rows) + "."
