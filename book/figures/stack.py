"""The still of the byte stack: 8 billion parameters on 8 ranks in the four stages, as lesson 08 counts them."""

from __future__ import annotations

from autograder.lesson import notebook
from machines.cluster import GB, find

CAPTION = "What a rank holds, by stage"
PARAMETERS, RANKS, LIMIT = 8 * 10**9, 8, find("H100").memory
#: What a parameter costs, and the stage from which on it is sharded.
PARTS = {"parameters": (2, 3), "gradients": (4, 2), "master copies": (4, 1), "m": (4, 1), "v": (4, 1)}
#: In units of the picture: the space for labels, the longest bar, a bar's height, the space between two bars.
LEFT, WIDE, HIGH, GAP = 60, 420, 30, 10


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    memory_per_rank = notebook.functions("08_zero1")["memory_per_rank"]
    scale, shard = WIDE / (sum(size for size, _ in PARTS.values()) * PARAMETERS), -(-PARAMETERS // RANKS)
    marks, sums = [], []
    for stage in range(4):
        x, y = float(LEFT), stage * (HIGH + GAP)
        marks.append(f'<text class="still-label" x="0" y="{y + 19}">stage {stage}</text>')
        for k, (size, first) in enumerate(PARTS.values()):
            wide = scale * size * (shard if stage >= first else PARAMETERS)
            look = f"fill: var(--rank-{min(k, 3)}); fill-opacity: {0.55 if k == 4 else 1}; opacity: 1"
            box = f'<rect class="still-box" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{HIGH}" style="{look}"/>'
            marks.append(box)
            x += wide
        total = memory_per_rank(PARAMETERS, RANKS, stage) / GB
        sums.append(f"{total:g} GB in stage {stage}")
        marks.append(f'<text class="still-label" x="{x + 6:.1f}" y="{y + 19}">{total:g} GB</text>')
    limit, bottom = LEFT + scale * LIMIT, 4 * (HIGH + GAP)
    marks.append(f'<rect class="still-box" x="{limit:.1f}" y="0" width="1.5" height="{bottom - GAP}"/>')
    marks.append(f'<text class="still-label" x="{limit - 40:.1f}" y="{bottom + 6}">{LIMIT / GB:.0f} GB, an H100</text>')
    key = ", ".join(f"{name} {size}" for name, (size, _) in PARTS.items())
    marks.append(f'<text class="still-label" x="0" y="{bottom + 26}">bytes, from left to right: {key}</text>')
    alt = f"Bytes that a rank of {RANKS} holds for {PARAMETERS // 10**9} billion parameters: {', '.join(sums)}."
    width, height = LEFT + WIDE + 66, bottom + 34
    return f'<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt
