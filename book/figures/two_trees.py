"""Two binary trees over the same ranks, each for half of a vector; leaves of one are inner ranks of the other."""

from __future__ import annotations

from drawing import drawing, label

CAPTION = "Two trees over eight ranks, and the vectors that each rank sends"
RANKS = 8
#: In units of the picture: a column, a level, and where the numbers below the trees stand.
COLUMN, LEVEL, BELOW = 34, 38, 190
LEFT = 92


def parents(n: int) -> dict[int, int | None]:
    """Rank → its parent in a binary tree in which the odd ranks are the leaves; None for the root."""
    found: dict[int, int | None] = {}

    def grow(low: int, high: int, parent: int | None) -> None:
        if low < high:
            middle = (low + high) // 2 // 2 * 2 if high - low > 1 else low
            middle = middle if low <= middle < high else low
            found[middle] = parent
            grow(low, middle, middle)
            grow(middle + 1, high, middle)

    grow(0, n, None)
    return found


def mirrored(tree: dict[int, int | None]) -> dict[int, int | None]:
    """The same tree with the ranks in reverse order."""
    last = len(tree) - 1
    return {last - rank: None if parent is None else last - parent for rank, parent in tree.items()}


def sends(tree: dict[int, int | None], rank: int) -> int:
    """Vectors that a rank sends in an all-reduce: one up, if it has a parent, and one down to each child."""
    return (tree[rank] is not None) + sum(parent == rank for parent in tree.values())


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    first = parents(RANKS)
    second = mirrored(first)
    marks = [*_tree(first, 0, "first half of the vector"), *_tree(second, BELOW - 8, "second half")]
    one = [sends(first, rank) for rank in range(RANKS)]
    both = [(sends(first, rank) + sends(second, rank)) / 2 for rank in range(RANKS)]
    top = 2 * BELOW + 4
    for row, (name, counts) in enumerate((("one tree", one), ("two trees", both))):
        y = top + 20 * row
        marks.append(label(0, y, name, "still-title"))
        marks += [label(LEFT + COLUMN * rank, y, f"{count:g}", anchor="middle") for rank, count in enumerate(counts)]
    alt = (
        "Two binary trees over the same eight ranks. In the first the even ranks are inner and the odd ranks are "
        "leaves. The second is its mirror image. "
        f"With one tree for all, ranks 0 to 7 send {', '.join(map(str, one))} vectors; "
        f"with half of the vector in each tree, {', '.join(f'{count:g}' for count in both)}."
    )
    return drawing(LEFT + COLUMN * RANKS - 14, top + 30, marks), alt


def _tree(tree: dict[int, int | None], top: float, title: str) -> list[str]:
    def depth(rank: int) -> int:
        parent = tree[rank]
        return 0 if parent is None else 1 + depth(parent)

    def place(rank: int) -> tuple[float, float]:
        return LEFT + COLUMN * rank, top + 34 + LEVEL * depth(rank)

    marks = [label(0, top + 14, title, "still-title")]
    for rank, parent in tree.items():
        if parent is not None:
            (x, y), (to_x, to_y) = place(rank), place(parent)
            marks.append(f'<path class="node-pcie" d="M{x} {y}L{to_x} {to_y}"/>')
    for rank in tree:
        x, y = place(rank)
        marks.append(f'<circle class="tree-rank" cx="{x}" cy="{y}" r="12"/>')
        marks.append(label(x, y + 4, str(rank), "still-title", "middle"))
    return marks
