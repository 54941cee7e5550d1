"""A ledger as a picture: when each rank sent, received or took part in a collective, or in which round."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.patches import Patch

from ranks.figure import Figure, color
from ranks.ledger import Message, pairs, schedule

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


def draw_rounds(ledger: Iterable[Message], world_size: int, title: str = "Who sent to whom") -> Figure:
    """One row and one color a rank, one column a round: an arrow for each message in the round it belongs to.

    Rounds are those of `Ledger.rounds`; unlike time, they are the same in every run of the same program.
    """
    numbered = schedule(ledger)
    last = max((number for _, number in numbered), default=0)
    fig = Figure(alt=_alt_rounds(numbered, world_size), figsize=(max(3.5, 1.8 + 0.9 * last), 1.3 + 0.45 * world_size))
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
    """Round by round, who sent to whom."""
    by_round: dict[int, list[str]] = {}
    for send, number in numbered:
        by_round.setdefault(number, []).append(f"{send.rank} to {send.peer}")
    said = "; ".join(f"round {number}: {', '.join(sends)}" for number, sends in sorted(by_round.items()))
    return f"Messages of {world_size} ranks by round. {said or 'No messages'}."


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
