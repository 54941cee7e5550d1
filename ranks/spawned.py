"""Where a spawned rank begins; imports nothing of torch until it runs in the new process."""

from __future__ import annotations

import os
from typing import Any


def main(connection: Any, rank: int) -> None:
    """Be `rank` in this new process."""
    os.environ["RANKS_INSIDE"] = "spawn"
    from ranks import rank as rank_module

    rank_module.main(connection, rank)
