"""A ledger as a picture: when each rank sent, received or took part in a collective."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.patches import Patch

from ranks.figure import Figure, color
from ranks.ledger import Message, pairs

#: With more messages than this, arrows would hide the bars.
_MAX_ARROWS = 120


def draw(ledger: Iterable[Message], world_size: int, title: str = "What each rank did") -> Figure:
    """One row and one color a rank. Upper half of a row: sends; lower half: receives; whole: collectives.

    An arrow goes from the start of a send to the end of the receive that took it. Time is in milliseconds
    from the run's first message.
    """
    messages = [m for m in ledger if m.end is not None]
    end = max((m.end for m in messages), default=0.0) * 1e3
    fig = Figure(alt=_alt(messages, world_size, end), figsize=(7.5, 1.3 + 0.55 * world_size))
    ax = fig.subplots()
    least = end / 300  # a bar that can be seen
    for m in messages:
        bottom, height = _place(m)
        ax.broken_barh(
            [(m.start * 1e3, max((m.end - m.start) * 1e3, least))],
            (bottom, height),
            facecolor=color(m.rank),
            alpha=0.45 if m.is_receive else 1.0,
            hatch="///" if m.is_collective else None,
            edgecolor="white",
            linewidth=0.4,
        )
    crossed = pairs(messages)
    if len(crossed) <= _MAX_ARROWS:
        for send, receive in crossed:
            ax.annotate(
                "",
                xy=(receive.end * 1e3, receive.rank + 0.18),
                xytext=(send.start * 1e3, send.rank - 0.18),
                arrowprops={"arrowstyle": "-|>", "color": color(send.rank), "lw": 0.9, "shrinkA": 0, "shrinkB": 0},
            )
    _label(ax, messages, world_size, title)
    return fig


def _place(message: Message) -> tuple[float, float]:
    """Bottom and height of a message's bar in its rank's row, whose axis points down."""
    if message.is_collective:
        return message.rank - 0.32, 0.64
    return (message.rank - 0.34, 0.32) if message.is_send else (message.rank + 0.02, 0.32)


def _label(ax, messages: list[Message], world_size: int, title: str) -> None:
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


def _alt(messages: list[Message], world_size: int, end: float) -> str:
    """The same in words: who made how many calls, and how long it took."""
    rows = []
    for rank in range(world_size):
        mine = [m for m in messages if m.rank == rank]
        counts = [
            (sum(m.is_send for m in mine), "sends"),
            (sum(m.is_receive for m in mine), "receives"),
            (sum(m.is_collective for m in mine), "collectives"),
        ]
        said = ", ".join(f"{count} {what}" for count, what in counts if count) or "no messages"
        rows.append(f"rank {rank}: {said}")
    return f"Timeline of {world_size} ranks over {end:.2f} ms. " + "; ".join(rows) + "."
