"""Rows on their way to four experts on two ranks: sorted by expert, received rank after rank, grouped again."""

from __future__ import annotations

from drawing import box, drawing, label

CAPTION = "Dispatch. Colors say whose token it is, letters which one, frames which expert a row is for"
#: rank -> (token, its two experts). Rank r holds experts 2r and 2r + 1.
CHOICES = (
    (("a", (0, 2)), ("b", (0, 1)), ("c", (1, 3))),
    (("d", (1, 2)), ("e", (0, 3)), ("f", (1, 2))),
)
OWN = 2
#: In units of the picture: a cell, the distance of two frames, a rank's panel, the left edge, the rows' names; each y.
CELL, HIGH, GAP, PANEL, LEFT, NAMES = 26, 22, 8, 228, 4, 428
TOKENS, SORTED, RECEIVED, GROUPED = 40, 90, 180, 270
#: A row: (rank of its token, letter, expert).
Row = tuple[int, str, int]


def sent() -> list[list[list[Row]]]:
    """rank -> blocks of rows, one for each expert that it sends some to."""
    found = []
    for rank, tokens in enumerate(CHOICES):
        rows = sorted((expert, letter) for letter, experts in tokens for expert in experts)
        experts = sorted({expert for expert, _ in rows})
        found.append([[(rank, letter, e) for e, letter in rows if e == expert] for expert in experts])
    return found


def received() -> list[list[list[Row]]]:
    """rank -> blocks of rows as they arrive: rank after rank, and within a rank expert after expert."""
    return [
        [block for blocks in sent() for block in blocks if block[0][2] // OWN == rank] for rank in range(len(CHOICES))
    ]


def grouped() -> list[list[list[Row]]]:
    """rank -> blocks of rows, one for each of its experts."""
    found = []
    for rank, blocks in enumerate(received()):
        experts = range(OWN * rank, OWN * rank + OWN)
        found.append([[row for block in blocks for row in block if row[2] == expert] for expert in experts])
    return found


def _places(blocks: list[list[Row]], rank: int) -> dict[Row, float]:
    """Where the cells of a rank's rows begin."""
    x, places = float(LEFT + PANEL * rank), {}
    for block in blocks:
        for row in block:
            places[row] = x
            x += CELL
        x += GAP
    return places


def _cells(blocks: list[list[Row]], rank: int, y: float) -> list[str]:
    """A rank's rows, each block in a frame that names its expert."""
    marks, places = [], _places(blocks, rank)
    for block in blocks:
        x = places[block[0]]
        marks.append(box(x - 2, y - 2, CELL * len(block) + 4, HIGH + 4, "owned-absent", 4))
        marks.append(label(x + CELL * len(block) / 2, y - 6, f"{block[0][2]}", "still-label", "middle"))
        marks += [_cell(places[row], y, row) for row in block]
    return marks


def _cell(x: float, y: float, row: Row) -> str:
    """One row, in the color of its token's rank."""
    look = f'width="{CELL - 2}" height="{HIGH}" rx="2" style="fill: var(--rank-{row[0]})"'
    filled = f'<rect x="{x + 1:g}" y="{y:g}" {look}/>'
    ink = "fill: #ffffff" if row[0] == 0 else "fill: #1b1b1b"
    return filled + label(x + CELL / 2, y + 15, row[1], "still-title", "middle", ink)


def _lines(above: list[list[list[Row]]], below: list[list[list[Row]]], y: float, to_y: float) -> list[str]:
    """Every row's way from one arrangement to the next."""
    ends = {row: x for rank, blocks in enumerate(below) for row, x in _places(blocks, rank).items()}
    marks = []
    for rank, blocks in enumerate(above):
        for row, x in _places(blocks, rank).items():
            start, end, bend = x + CELL / 2, ends[row] + CELL / 2, (to_y - y) / 2
            way = f"M{start:g} {y:g}C{start:g} {y + bend:g} {end:g} {to_y - bend:g} {end:g} {to_y:g}"
            marks.append(f'<path class="moved" style="stroke: var(--rank-{row[0]})" d="{way}"/>')
    return marks


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks = []
    for rank, tokens in enumerate(CHOICES):
        x = LEFT + PANEL * rank
        marks.append(label(x, 14, f"rank {rank}: experts {OWN * rank} and {OWN * rank + 1}", "still-title"))
        for number, (letter, experts) in enumerate(tokens):
            left = x + 70 * number
            marks.append(_cell(left, TOKENS - 14, (rank, letter, 0)))
            marks.append(label(left + CELL + 2, TOKENS + 1, " ".join(map(str, experts))))
    three = (sent(), received(), grouped())
    marks += _lines(three[0], three[1], SORTED + HIGH + 3, RECEIVED - 18)
    marks += _lines(three[1], three[2], RECEIVED + HIGH + 3, GROUPED - 18)
    names = (("one row per", "choice, sorted"), ("as received,", "rank after rank"), ("grouped", "by expert"))
    for blocks, y, lines in zip(three, (SORTED, RECEIVED, GROUPED), names, strict=True):
        for rank in range(len(CHOICES)):
            marks += _cells(blocks[rank], rank, y)
        marks += [label(NAMES, y + 8 + 13 * number, line, "still-label") for number, line in enumerate(lines)]
    wide = 2 * PANEL + LEFT
    marks.append(box(wide / 2 - 44, (SORTED + RECEIVED) / 2 - 4, 88, 19, "pill", 9))
    marks.append(label(wide / 2, (SORTED + RECEIVED) / 2 + 10, "all-to-all", "still-title", "middle"))
    counts = [[len(block) for block in blocks] for blocks in grouped()]
    alt = (
        "Two ranks with three tokens and two experts each. Every token is copied to two rows, one per chosen expert, "
        "and each rank sorts its rows by expert. An all-to-all brings them to the ranks that hold the experts, where "
        "they arrive rank after rank. Grouped by expert, these are "
        + "; ".join(
            f"on rank {rank} {mine[0]} rows for expert {OWN * rank} and {mine[1]} for expert {OWN * rank + 1}"
            for rank, mine in enumerate(counts)
        )
        + "."
    )
    return drawing(NAMES + 92, GROUPED + HIGH + 6, marks), alt
