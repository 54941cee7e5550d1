"""Sixteen tokens on four ranks in three layouts: who computes which pairs in which step, and how long steps last."""

from __future__ import annotations

from drawing import box, drawing, label

from autograder.lesson import notebook

CAPTION = "Causal attention on a ring of four ranks. Rows are queries, colors ranks, numbers steps; below: time in step"
LENGTH, RANKS = 16, 4
LAYOUTS = ("contiguous", "striped", "zigzag")
#: In units of the picture: a cell's size, the space between two squares, a lane, and what one pair takes.
CELL, GAP, HIGH, PAIR = 11, 26, 15, 3
TOP, BELOW = 22, 22 + 16 * 11 + 34


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    lesson = notebook.functions("13_context")
    marks, said, left = [], [], 30
    for layout in LAYOUTS:
        shards = [lesson["shard_positions"](LENGTH, rank, RANKS, layout) for rank in range(RANKS)]
        pairs_of = lesson["pair_counts"](shards)
        counts, share = pairs_of.tolist(), lesson["idle_fraction"](pairs_of)
        owner = {position: rank for rank, shard in enumerate(shards) for position in shard.tolist()}
        marks.append(label(left, 13, layout, "still-title"))
        for query in range(LENGTH):
            for key in range(query + 1):
                x, y, step = left + key * CELL, TOP + query * CELL, (owner[query] - owner[key]) % RANKS
                marks.append(_box(x, y, CELL - 1, CELL - 1, owner[query]))
                marks.append(label(x + 2, y + 8.5, str(step), style="font-size: 9px"))
        lasts, start = [max(step) for step in counts], 0
        for number, step in enumerate(counts):
            for rank, pairs in enumerate(step):
                x, y = left + start * PAIR, BELOW + rank * (HIGH + 3)
                marks.append(box(x, y, lasts[number] * PAIR - 1, HIGH, "still-box", 0))
                if pairs:
                    marks.append(_box(x, y, pairs * PAIR - 1, HIGH, rank))
                if pairs >= 3:
                    marks.append(label(x + 4, y + 11, str(number), style="font-size: 9px"))
            start += lasts[number]
        idle = f"{100 * share:.0f} % of the time idle"
        marks.append(label(left, BELOW - 14, f"Time: {100 * share:.0f} % idle", "still-title"))
        said.append(f"{layout}, {idle}, in steps of {', '.join(map(str, lasts))} pairs")
        left += LENGTH * CELL + GAP
    for rank in range(RANKS):
        marks.append(label(0, BELOW + rank * (HIGH + 3) + 11, f"r{rank}"))
    marks.append(label(30, BELOW + RANKS * (HIGH + 3) + 12, "A step lasts as long as its busiest rank."))
    alt = (
        f"Above, three squares of {LENGTH} queries by {LENGTH} keys, the lower triangle filled: the color is "
        "the rank of the query, the number the step in which that rank holds the key. Below, the four ranks in time: a "
        f"bar per step, and a frame as long as the busiest rank's. {'; '.join(said)}."
    )
    return drawing(left - GAP, BELOW + RANKS * (HIGH + 3) + 18, marks), alt


def _box(x: float, y: float, width: float, height: float, rank: int) -> str:
    """A filled rectangle in a rank's color."""
    look = f"fill: var(--rank-{rank}); fill-opacity: 0.45"
    return f'<rect style="{look}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'
