"""What `ranks.run` raises when a run does not end well: RankError and HangError.

Both carry `evidence`: what happened on each rank as plain data, without times and paths, so that two
failures of the same kind compare equal.
"""

from __future__ import annotations

from typing import Any


class RankError(RuntimeError):
    """One rank failed; the others were ended.

    rank: which one. type_name: the class of its exception, or "" when the process died without one.
    reason: the exception's text, or how the process died. where: the innermost line that is not torch's, if
    there is one. traceback: its whole stack, cell lines included. headline: all of this but the stack.
    """

    def __init__(self, rank: int, type_name: str, reason: str, traceback: str = "", where: str = ""):
        self.rank, self.type_name, self.reason, self.traceback, self.where = rank, type_name, reason, traceback, where
        self.evidence: Any = ("rank failed", rank, type_name, reason)
        self.headline = f"rank {rank} raised {type_name}: {reason}" if type_name else f"rank {rank} {reason}"
        super().__init__(f"{self.headline}\n{traceback}".rstrip())


class HangError(RuntimeError):
    """The ranks wait for something that cannot come, or did not finish in time.

    waits: one sentence a rank: the call that it waits in, the peer and the cell's line.
    parted: the first place where what the ranks did no longer fits together, as one sentence ("" if none).
    """

    def __init__(self, headline: str, waits: list[str], parted: str, evidence: Any):
        self.waits, self.parted, self.evidence = waits, parted, evidence
        super().__init__("\n".join([headline, *(f"  {wait}" for wait in waits), *([parted] if parted else [])]))
