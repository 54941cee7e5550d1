"""N ranks as processes on one machine: their messages, their hangs, their pictures.

    import ranks

    def worker(rank, world_size, x):
        ...                                   # anything in torch.distributed
        return x

    results = ranks.run(worker, world_size=4, args=(x,))
    results[0], results.ledger, results.stdout, results.timeline()

A worker needs only `torch.distributed`, so `torchrun` runs the same function on a cluster.
"""

from __future__ import annotations

from ranks import processes
from ranks.errors import HangError, RankError
from ranks.launch import Results, run

__all__ = ["COLORS", "Figure", "HangError", "RankError", "Results", "run"]


def __getattr__(name: str):
    # matplotlib is slow to import, and most runs draw nothing.
    if name in ("COLORS", "Figure"):
        from ranks import figure

        return getattr(figure, name)
    raise AttributeError(f"module 'ranks' has no attribute {name!r}")


processes.start_server()
