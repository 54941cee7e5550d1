"""The first function of a spawned rank. This module imports torch only inside the new process."""

from __future__ import annotations

import os
from typing import Any


def main(connection: Any, rank: int) -> None:
    """Say that this new process is ready, then serve one run as `rank`."""
    os.environ["RANKS_INSIDE"] = "spawn"
    from ranks import rank as rank_module

    connection.send("ready")
    rank_module.main(connection, rank)
