"""Where code is, in a notebook's own terms: `Cell In[5], line 3: dist.recv(x, src=1)`."""

from __future__ import annotations

import builtins
import contextlib
import linecache
import os
import re
import traceback
from typing import Any

# By the names of our files, because a user's own folder may be called `ranks` as well.
_OURS = "|".join(
    re.escape(name) for name in os.listdir(os.path.dirname(os.path.abspath(__file__))) if name[-3:] == ".py"
)
_FOREIGN = re.compile(
    rf"[/\\](torch|multiprocessing|lib[/\\]python[^/\\]*)[/\\]|[/\\]ranks[/\\]({_OURS})$|^<frozen|^<string>"
)

#: How the paths of files begin whose code no message may show → what stands there instead.
HIDDEN: dict[str, str] = {}


def place(file: str, line: int) -> str:
    """The file's name or the cell's number, the number of the line, and its text."""
    for start, instead in HIDDEN.items():
        if file.startswith(start):
            return instead
    text = linecache.getline(file, line).strip()
    return f"{name_of(file)}, line {line}" + (f": {text}" if text else "")


def name_of(file: str) -> str:
    """`Cell In[5]` for a notebook's cell, for a file its name without folders."""
    cell = _cell_number(file)
    return f"Cell In[{cell}]" if cell is not None else os.path.basename(file) or "unknown place"


def stack_text(chain: list[dict[str, Any]]) -> str:
    """A traceback of another process's chain of exceptions, with source lines where this process knows them."""
    parts = []
    for link in chain:
        frames = traceback.StackSummary.from_list(
            [traceback.FrameSummary(name_of(f), n, fn, line=linecache.getline(f, n)) for f, n, fn in _own(link)]
        )
        parts.append("".join(frames.format()) + f"{link['type']}: {link['text']}")
    return "\n\nwhich led to\n\n".join(parts)


def where(chain: list[dict[str, Any]]) -> str:
    """The innermost line of the last exception's traceback that is not foreign; "" if there is none."""
    frames = [frame for link in chain[-1:] for frame in _own(link)]
    return place(frames[-1][0], frames[-1][1]) if frames else ""


def foreign(file: str) -> bool:
    """Is this file part of torch, of Python's own modules, of `ranks`, or of a hidden folder?"""
    return bool(_FOREIGN.search(file)) or file.startswith(tuple(HIDDEN))


def _own(link: dict[str, Any]) -> list[tuple[str, int, str]]:
    """The worker's own frames, without those of the runtime that called it and of torch below it."""
    return [frame for frame in link["stack"] if not foreign(frame[0])]


def _cell_number(file: str) -> int | None:
    """The number of the cell that IPython has given this file name; None for other files."""
    get_ipython = getattr(builtins, "get_ipython", None)  # IPython puts it there while a cell runs
    if get_ipython is None:
        return None
    shell = get_ipython()
    numbers: dict[str, int] | None = getattr(shell.compile, "_filename_map", None)
    if numbers is None:
        numbers = _numbers_by_name(shell)
    return numbers.get(file)


def _numbers_by_name(shell: Any) -> dict[str, int]:
    """File name → number of each cell, for IPython 7 (Colab, Kaggle), which keeps no such table.

    There a name is derived from the cell's text, so the last of several equal cells has it. The history has lost the
    newline at a text's end.
    """
    names = {}
    with contextlib.suppress(AttributeError, TypeError):  # a shell of another make
        history = shell.history_manager
        for n, texts in enumerate(zip(history.input_hist_raw, history.input_hist_parsed, strict=False)):
            for end in ("", "\n"):
                names[shell.compile.get_code_name(texts[0] + end, texts[1] + end, n)] = n
    return names
