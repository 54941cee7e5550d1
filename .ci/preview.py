"""Draw the picture by which others show a link to the book: 1,200 × 630 pixels, four ranks on a ring and the title.

.venv/bin/python .ci/preview.py book/_static/preview.png
"""

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ranks
from tests.helpers.browser import Tab, chromium

WIDTH, HEIGHT = 1200, 630
CENTER, RADIUS, DISK = (900, 315), 180, 58
LINES = ("Distributed", "Training,", "End to End")
BELOW = ("A book to read, notebooks to solve,", "grades that explain themselves.")
FONT = "system-ui, 'DejaVu Sans', sans-serif"


def place(angle: float, radius: float = RADIUS) -> tuple[float, float]:
    """The point at this angle from the top, clockwise, in degrees."""
    turn = math.radians(angle)
    return CENTER[0] + radius * math.sin(turn), CENTER[1] - radius * math.cos(turn)


def ring() -> str:
    """Four ranks, each with an arrow to the next."""
    parts = []
    for rank in range(4):
        (x, y), (x2, y2) = place(90 * rank + 24), place(90 * rank + 64)
        parts.append(
            f'<path d="M {x:.1f} {y:.1f} A {RADIUS} {RADIUS} 0 0 1 {x2:.1f} {y2:.1f}" fill="none" stroke="#56606c" '
            f'stroke-width="5" marker-end="url(#tip)"/>'
        )
        x, y = place(90 * rank)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DISK}" fill="{ranks.COLORS[rank]}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y + 16:.1f}" font-size="46" font-weight="650" text-anchor="middle" '
            f'fill="white">{rank}</text>'
        )
    return "".join(parts)


def page() -> str:
    """The picture as a page of its own."""
    title = "".join(
        f'<text x="80" y="{190 + 88 * i}" font-size="80" font-weight="700" letter-spacing="-2" fill="#22272e">{line}'
        "</text>"
        for i, line in enumerate(LINES)
    )
    below = "".join(
        f'<text x="84" y="{460 + 44 * i}" font-size="29" fill="#56606c">{line}</text>' for i, line in enumerate(BELOW)
    )
    tip = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="7" refY="5" markerWidth="4.5" markerHeight="4.5" '
        'orient="auto"><path d="M 0 0 L 10 5 L 0 10 z" fill="#56606c"/></marker></defs>'
    )
    return (
        f'<style>body {{ margin: 0 }}</style><svg width="{WIDTH}" height="{HEIGHT}" font-family="{FONT}">'
        f'<rect width="100%" height="100%" fill="white"/>{tip}{title}{below}{ring()}</svg>'
    )


def main() -> None:
    """Write the picture to the file that the command line names."""
    with chromium() as browser:
        tab = Tab(browser, WIDTH, HEIGHT)
        tab.page.set_content(page())
        tab.page.screenshot(path=sys.argv[1])


if __name__ == "__main__":
    main()
