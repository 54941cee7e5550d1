"""The still of the ring all-reduce: which parts each rank has added up, before the first round and after each."""

from __future__ import annotations

CAPTION = "A ring all-reduce, round by round"
RANKS = 4
#: In units of the picture: a chunk's width and height, and the space around a panel.
WIDE, HIGH, GAP = 34, 22, 4
LEFT, TOP, RIGHT = 46, 40, 14
COLUMNS = 4


def parts_by_round(ranks: int) -> list[list[list[set[int]]]]:
    """Entry k is after round k, entry 0 before the first: for each rank and chunk, the ranks whose parts it holds.

    Reduce-scatter: in its round k rank r sends chunk r - k to the right, where it is added. All-gather: chunk r - k + 1
    is kept.
    """
    parts = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    found = [parts]
    for k in range(2 * (ranks - 1)):
        adding = k < ranks - 1
        after = [list(chunks) for chunks in parts]
        for rank in range(ranks):
            chunk = (rank - k - 1) % ranks if adding else (rank - k + ranks - 1) % ranks
            right = (rank + 1) % ranks
            after[right][chunk] = parts[rank][chunk] | (parts[right][chunk] if adding else set())
        parts = after
        found.append(parts)
    return found


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    frames = parts_by_round(RANKS)
    panel = (LEFT + RANKS * (WIDE + GAP) + RIGHT, TOP + RANKS * (HIGH + GAP) + 24)
    rows = -(-len(frames) // COLUMNS)
    marks = []
    for k, parts in enumerate(frames):
        x, y = panel[0] * (k % COLUMNS), panel[1] * (k // COLUMNS)
        title = "before" if k == 0 else f"after round {k}"
        marks.append(f'<text class="still-title" x="{x + LEFT}" y="{y + 14}">{title}</text>')
        marks += [
            f'<text class="still-label" x="{x + LEFT + c * (WIDE + GAP) + WIDE / 2}" y="{y + 32}" '
            f'text-anchor="middle">{c}</text>'
            for c in range(RANKS)
        ]
        for rank, chunks in enumerate(parts):
            top = y + TOP + rank * (HIGH + GAP)
            marks.append(f'<text class="still-label" x="{x}" y="{top + 15}">rank {rank}</text>')
            for c, have in enumerate(chunks):
                marks += _chunk(x + LEFT + c * (WIDE + GAP), top, have)
    size = f"0 0 {panel[0] * COLUMNS} {panel[1] * rows}"
    alt = (
        f"Ring all-reduce of {RANKS} ranks, before the first round and after each of the {len(frames) - 1}. In the "
        f"first {RANKS - 1} rounds the parts of more and more ranks are added up in the chunks on a diagonal, until "
        f"rank r holds the finished chunk r; in the last {RANKS - 1} the finished chunks spread to all ranks."
    )
    return f'<svg viewBox="{size}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt


def _chunk(x: float, y: float, have: set[int]) -> list[str]:
    """A box with one strip a rank, filled if its part has been added; a heavy frame once all have been."""
    strip = WIDE / RANKS
    strips = [
        f'<rect x="{x + q * strip:g}" y="{y}" width="{strip:g}" height="{HIGH}" style="fill: var(--rank-{q})"/>'
        for q in sorted(have)
    ]
    done = " still-done" if len(have) == RANKS else ""
    return [*strips, f'<rect class="still-box{done}" x="{x}" y="{y}" width="{WIDE}" height="{HIGH}"/>']
