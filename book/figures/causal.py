"""The still of causal attention: 24 tokens on five ranks in three layouts, counted by lesson 13's functions."""

from __future__ import annotations

from autograder.lesson import notebook

CAPTION = "Which rank computes which pairs of queries and keys"
LENGTH, RANKS = 24, 5  # what the figure's question asks: twice 5 does not divide 24
LAYOUTS = ("contiguous", "striped", "zigzag")
#: In units of the picture: a cell's size, and the space between two squares.
CELL, GAP = 8, 16


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    lesson = notebook.functions("13_context")
    marks, said, left = [], [], 0
    for layout in LAYOUTS:
        positions = [lesson["shard_positions"](LENGTH, rank, RANKS, layout) for rank in range(RANKS)]
        idle = lesson["idle_fraction"](lesson["pair_counts"](positions))
        title = f"{layout}: {100 * idle:.1f} % waiting"
        marks.append(f'<text class="still-title" x="{left}" y="12">{title}</text>')
        owner = {position: rank for rank, shard in enumerate(positions) for position in shard.tolist()}
        for query in range(LENGTH):
            for key in range(query + 1):
                x, y = left + key * CELL, 20 + query * CELL
                look = f"fill: var(--rank-{owner[query]}); fill-opacity: 0.45; opacity: 1; stroke: none"
                shape = f'x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}"'
                marks.append(f'<rect class="still-box" {shape} style="{look}"/>')
        said.append(title)
        left += LENGTH * CELL + GAP
    key = f"{LENGTH} tokens on {RANKS} ranks. Rows are queries in the color of their rank, columns keys."
    marks.append(f'<text class="still-label" x="0" y="{36 + LENGTH * CELL}">{key}</text>')
    alt = f"Which of {RANKS} ranks computes which pairs of {LENGTH} queries and keys. {'; '.join(said)}."
    size = f"{left - GAP} {42 + LENGTH * CELL}"
    return f'<svg viewBox="0 0 {size}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt
