"""What `ranks.run` raises: RankError when a rank fails, HangError when the ranks wait forever or run out of time.

Both carry `evidence`: what happened on each rank as plain data, without times and paths, so that two
failures of the same kind compare equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ranks.ledger import Ledger

if TYPE_CHECKING:
    from ranks.figure import Figure


class RankError(RuntimeError):
    """One rank failed; the other ranks were ended.

    rank: the rank that failed. type_name: the class of its exception, or "" if the process died without one.
    reason: the exception's text, or how the process died. headline: rank, class and reason in one sentence.
    where: the innermost line of the worker, or "" if there is none. traceback: the rank's stack without the frames
    of torch, of Python's own modules and of `ranks`.
    """

    def __init__(self, rank: int, type_name: str, reason: str, traceback: str = "", where: str = ""):
        self.rank, self.type_name, self.reason, self.traceback, self.where = rank, type_name, reason, traceback, where
        self.evidence: Any = ("rank failed", rank, type_name, reason)
        raised = f"raised {type_name}" + (f": {reason}" if reason else "")
        self.headline = f"rank {rank} {raised if type_name else reason}"
        super().__init__(f"{self.headline}\n{traceback}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        """How it travels between processes: by default, an exception is made anew from its text alone."""
        return type(self), (self.rank, self.type_name, self.reason, self.traceback, self.where), self.__dict__


class HangError(RuntimeError):
    """Ranks wait for something that can no longer happen, or the run did not finish in time.

    headline: who waits forever, or that time was up. waits: one sentence a rank: the call in which it waits, the peer,
    and the line of code.
    parted: one sentence on the first point at which the ranks' calls do not fit together, or "" if there is none.
    ledger: every message until then.
    """

    def __init__(self, headline: str, waits: list[str], parted: str, evidence: Any, ledger: Ledger | None = None):
        self.headline, self.waits, self.parted, self.evidence = headline, waits, parted, evidence
        self.ledger = Ledger() if ledger is None else ledger
        super().__init__("\n".join([headline, *(f"  {wait}" for wait in waits), *([parted] if parted else [])]))

    def __reduce__(self) -> tuple[Any, ...]:
        """How it travels between processes: by default, an exception is made anew from its text alone."""
        return type(self), (self.headline, self.waits, self.parted, self.evidence, self.ledger), self.__dict__

    def timeline(self, title: str = "What happened before the hang") -> Figure:
        """A figure of the ledger: calls that never end reach the right edge."""
        from ranks import timeline  # matplotlib is slow to import

        lines = [" ".join(line.split()).rstrip(".") for line in (self.headline, self.parted) if line]
        stuck = " ".join(f"{line[0].upper()}{line[1:]}." for line in lines)
        return timeline.draw(self.ledger, self.ledger.world_size, title, stuck)
