"""Figures with one color a rank and a text alternative."""

from __future__ import annotations

import base64
import html
import io
import re
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure as _Figure
from matplotlib.text import Text

#: The colors of ranks 0, 1, 2, …, the same in every figure: Okabe and Ito's palette, safe for color-blind readers.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#666666")

#: The least size of a label, in points: smaller ones cannot be read beside a page's own text.
LEGIBLE = 9

#: A path in a picture, and what is finer in it than a hundredth of a point.
_PATH, _FINER = re.compile(rb' d="[^"]*"'), re.compile(rb"(?<=\.\d\d)\d+")


def color(rank: int) -> str:
    """Rank r's color; from rank 8 on they repeat."""
    return COLORS[rank % len(COLORS)]


class Figure(_Figure):
    """A matplotlib Figure with a text alternative. A notebook shows it if it is the last value of a cell.

    alt: what the figure shows, in a sentence or two. ledger: the run that it shows, as `ranks.playable.to_json` writes
    it, or ""; a page may play it. The other arguments are those of matplotlib's Figure.
    """

    def __init__(self, *, alt: str, ledger: str = "", **kwargs: Any):
        kwargs.setdefault("layout", "constrained")
        kwargs.setdefault("figsize", (7.5, 3.2))
        kwargs.setdefault("dpi", 100)
        super().__init__(**kwargs)
        self.alt, self.ledger = alt, ledger

    def svg(self) -> bytes:
        """The figure as SVG on no ground: a page puts its own under it. The same figure is the same bytes.

        Labels that are smaller than `LEGIBLE` are drawn at that size.
        """
        for text in self.findobj(Text):
            text.set_fontsize(max(text.get_fontsize(), LEGIBLE))
        picture = io.BytesIO()
        with rc_context({"svg.hashsalt": "ranks"}):
            self.savefig(picture, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        return _PATH.sub(lambda path: _FINER.sub(b"", path[0]), picture.getvalue())

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.svg()).decode()
        width = round(self.get_figwidth() * self.dpi)
        alt = html.escape(self.alt, quote=True)
        ledger = ""
        if self.ledger:  # in single quotes, since JSON is full of double ones
            ledger = f" data-ledger='{html.escape(self.ledger, quote=False).replace(chr(39), '&#39;')}'"
        return (
            f'<img src="data:image/svg+xml;base64,{data}" alt="{alt}" '
            f'style="width: {width}px; max-width: 100%; background: white"{ledger}/>'
        )
