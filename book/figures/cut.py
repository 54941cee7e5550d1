"""The still of the cut layers: the first by its outputs, the second by its inputs, on two ranks."""

from __future__ import annotations

CAPTION = "Two layers, cut over several ranks"
RANKS = 2
#: Each tensor's width and height, and how a rank holds it: some columns or rows, all, or a partial sum.
TENSORS = {
    "x": (26, 18, "all"),
    "W₁": (26, 52, "rows"),
    "h": (52, 18, "columns"),
    "W₂": (52, 26, "columns"),
    "y": (26, 18, "partial sum"),
}
#: In units of the picture: the space for labels, a row's height, the space between tensors.
LEFT, HIGH, GAP = 54, 66, 26


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, x = [], float(LEFT)
    for name, (wide, high, how) in TENSORS.items():
        marks.append(f'<text class="still-title" x="{x + wide / 2 - 6:g}" y="12">{name}</text>')
        for rank in range(RANKS):
            top = 24 + rank * HIGH + (52 - high) / 2
            w, h = (wide / RANKS if how == "columns" else wide), (high / RANKS if how == "rows" else high)
            dx, dy = (rank * w if how == "columns" else 0), (rank * h if how == "rows" else 0)
            look = f"fill: var(--rank-{rank}); fill-opacity: {0.35 if how == 'partial sum' else 1}; opacity: 1"
            marks += [
                _box(x, top, wide, high),
                _box(x + dx, top + dy, w, h, f' style="{look}"'),
            ]
            if how == "partial sum":
                marks.append(f'<text class="still-label" x="{x + wide / 2 - 4:g}" y="{top + high / 2 + 4:g}">+</text>')
        x += wide + GAP
    labels = [f'<text class="still-label" x="0" y="{54 + rank * HIGH}">rank {rank}</text>' for rank in range(RANKS)]
    alt = (
        "Two layers of an MLP on two ranks, the first cut by its outputs, the second by its inputs: each rank has all "
        "of x, half of the rows of the first weight, half of h, half of the columns of the second weight, and a "
        "partial sum of y."
    )
    size = f'viewBox="0 0 {x:g} {24 + RANKS * HIGH}" width="{1.5 * x:g}"'
    return (
        f'<svg {size} xmlns="http://www.w3.org/2000/svg">{"".join(labels + marks)}</svg>',
        alt,
    )


def _box(x: float, y: float, wide: float, high: float, look: str = "") -> str:
    return f'<rect class="still-box" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}"{look}/>'
