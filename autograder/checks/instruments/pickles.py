"""A file that shows whether somebody has unpickled it."""

from __future__ import annotations

import os


class Bomb:
    """What a file from a stranger may hold: unpickling it makes a folder, `marker`."""

    def __init__(self, marker: str):
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.marker,)
