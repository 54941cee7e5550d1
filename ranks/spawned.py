"""The first function of a spawned rank. This module imports torch only inside the new process."""

from __future__ import annotations

import os
from typing import Any


def main(connection: Any, rank: int, preload: list[str]) -> None:
    """Import torch and the modules in `preload`, say that this new process is ready, and serve one run as `rank`."""
    os.environ["RANKS_INSIDE"] = "spawn"
    from ranks import rank as rank_module
    from ranks import server

    server.import_once(preload)
    connection.send("ready")
    rank_module.main(connection, rank)
