"""Run a `torch.distributed` worker as N processes on one machine; see every message, and an explanation of every hang.

    import ranks

    def worker(rank, world_size, x):
        ...                                   # anything in torch.distributed
        return x

    results = ranks.run(worker, world_size=4, args=(x,))
    results[0], results.ledger, results.stdout, results.timeline()

A worker needs only `torch.distributed`, so a script that calls the same function runs under `torchrun` on a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ranks import progress
from ranks.errors import HangError, RankError
from ranks.launch import Results, run
from ranks.ledger import Ledger, Message, Span

if TYPE_CHECKING:
    from ranks.figure import COLORS, Figure

#: The version of `ranks`; that of the course and of the book is in CITATION.cff.
__version__ = "0.3.0.dev0"

__all__ = ["COLORS", "Figure", "HangError", "Ledger", "Message", "RankError", "Results", "Span", "run"]


def __getattr__(name: str) -> Any:
    # matplotlib is imported only when a figure is drawn: it is slow to import.
    if name in ("COLORS", "Figure"):
        from ranks import figure

        return getattr(figure, name)
    raise AttributeError(f"module 'ranks' has no attribute {name!r}")


progress.watch_cells()
