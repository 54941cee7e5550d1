"""Where code is, in words that a notebook's reader knows: `Cell In[5], line 3: dist.recv(x, src=1)`."""

from __future__ import annotations

import linecache
import os
import re
import traceback

_FOREIGN = re.compile(r"[/\\](torch|ranks|multiprocessing|lib[/\\]python[^/\\]*)[/\\]|^<frozen|^<string>")


#: Folders whose code is shown to nobody: that of the tests.
HIDDEN: set[str] = set()


def place(file: str, line: int) -> str:
    """A file's name, or the cell's number, with the line and its text."""
    if _hidden(file):
        return "a line of the test"
    text = linecache.getline(file, line).strip()
    return f"{name_of(file)}, line {line}" + (f": {text}" if text else "")


def name_of(file: str) -> str:
    """`Cell In[5]` for a notebook cell, the file's last name for a file."""
    cell = _cell_number(file)
    return f"Cell In[{cell}]" if cell is not None else os.path.basename(file) or "unknown place"


def stack_text(chain: list[dict]) -> str:
    """A chain of exceptions from another process as a traceback, with the source that this process knows."""
    parts = []
    for link in chain:
        frames = traceback.StackSummary.from_list(
            [traceback.FrameSummary(name_of(f), n, fn, line=linecache.getline(f, n)) for f, n, fn in _own(link)]
        )
        parts.append("".join(frames.format()) + f"{link['type']}: {link['text']}")
    return "\n\nwhich led to\n\n".join(parts)


def where(chain: list[dict]) -> str:
    """The innermost line of the last exception that is neither torch's nor the standard library's; "" if none."""
    frames = [frame for link in chain[-1:] for frame in _own(link)]
    return place(frames[-1][0], frames[-1][1]) if frames else ""


def foreign(file: str) -> bool:
    """Is this file part of torch, of Python, of this runtime or of what is hidden?"""
    return bool(_FOREIGN.search(file)) or _hidden(file)


def _hidden(file: str) -> bool:
    return file.startswith(tuple(HIDDEN))


def _own(link: dict) -> list[tuple]:
    """The student's frames: how the runtime called them, and what torch did inside, does not help anybody."""
    return [frame for frame in link["stack"] if not foreign(frame[0])]


def _cell_number(file: str) -> int | None:
    """IPython gives each cell a file name; its shell knows which execution that was."""
    try:
        shell = get_ipython()
    except NameError:
        return None
    return getattr(shell.compile, "_filename_map", {}).get(file)
