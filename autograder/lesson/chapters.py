"""`autograder chapters`: run the chapters whose outputs are missing or stale, two at a time.

myst-nb keeps a chapter's outputs in a cache as long as the chapter's own cells are the same, and runs all other
chapters one after another while the book is built. This command runs them before the build, each in a process of its
own, and stores their outputs in that cache. The outputs also depend on what the cells use: the runtime, functions of
solutions, checks and known answers (`keys.of_chapter`). Where these have changed, the cached outputs are removed first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat

from autograder.lesson import executing, keys, notebook
from autograder.lesson.executing import at_once
from autograder.lesson.files import write_whole

BOOK = notebook.ROOT / "book"
CACHE = notebook.ROOT / "_build" / "jupyter_cache"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand `chapters`."""
    parser = subparsers.add_parser("chapters", help="run the book's chapters whose code has changed")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="run their chapters only (default: every chapter)")
    parser.add_argument("--jobs", type=int, default=2, help="chapters at once (default: 2)")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status. A chapter that fails is a line; the build runs it again, and reports it."""
    from tqdm import tqdm

    forget_stale(CACHE)
    wanted = notebook.pick(arguments.lessons)
    todo = [path for path in uncached(CACHE) if not arguments.lessons or path.stem in wanted]
    for number, result in at_once(execute, [(path,) for path in todo], arguments.jobs, "chapters", begin=_mute):
        if isinstance(result, Exception):
            result = f"the process that ran it ended: {_in_a_line(result)}"
        if isinstance(result, str):
            tqdm.write(f"{todo[number].relative_to(notebook.ROOT)}: {result}", file=sys.stderr)  # above the bar
        else:
            _store(CACHE, todo[number], *result)
    return 0


def _mute() -> None:
    """In a worker: kernels write warnings of their own to stderr; a chapter's errors come back as its result."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def forget_stale(cache: Path) -> list[str]:
    """Remove the outputs of changed chapters from the cache, and store the chapters' new keys; the removed chapters."""
    record = cache.with_name(f"{cache.name}.json")
    now = {str(path.relative_to(BOOK)): keys.of_chapter(path) for path in _chapters()}
    before = _read_keys(record)
    stale = [name for name, key in now.items() if before.get(name) != key]
    store = _open(cache)
    # The cache may have been moved with its repository: of a chapter's old path only the end counts.
    removed = {
        entry.pk: name
        for entry in store.list_cache_records()
        for name in stale
        if entry.uri.endswith(f"/{BOOK.name}/{name}")
    }
    for key in removed:
        store.remove_cache(key)
    write_whole(record, json.dumps(now, indent=1))
    return sorted(removed.values())


def uncached(cache: Path) -> list[Path]:
    """The chapters whose outputs are not in the cache, the longest texts first."""
    store, found = _open(cache), []
    for path in _chapters():
        try:
            store.match_cache_notebook(_notebook_of(path))
        except KeyError:
            found.append(path)
    return sorted(found, key=lambda path: -path.stat().st_size)


def execute(path: Path) -> tuple[Any, float] | str:
    """Run one chapter's cells: the notebook with outputs and the seconds it took, or the error in a line."""
    began, nb = time.monotonic(), _notebook_of(path)
    with tempfile.TemporaryDirectory(prefix=f"chapter-{path.stem}-") as folder:
        source, output = Path(folder, "source.ipynb"), Path(folder, f"{path.stem}.ipynb")
        nbformat.write(nb, source)
        try:
            executing.execute(source, output, path.parent)
            executed = nbformat.read(output, as_version=4)
        except executing.CellFailedError as error:
            return str(error)
        except Exception as error:  # of papermill, of the kernel or of the disk: it must not cost the other chapters
            return f"its kernel failed: {_in_a_line(error)}"
    # Without what papermill adds.
    nb.metadata.update({key: executed.metadata[key] for key in ("kernelspec", "language_info")})
    for cell, done in zip(nb.cells, executed.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = done.outputs, done.execution_count
    return nb, time.monotonic() - began


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {executing.first_line(error)}".removesuffix(": ")


def _store(cache: Path, path: Path, nb: Any, seconds: float) -> None:
    from jupyter_cache.base import CacheBundleIn

    bundle = CacheBundleIn(nb, str(path), data={"execution_seconds": seconds})
    _open(cache).cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def _chapters() -> list[Path]:
    """The pages of the book that have cells."""
    from myst_nb.core.read import is_myst_markdown_notebook

    return [path for path in sorted(BOOK.rglob("*.md")) if is_myst_markdown_notebook(path.read_text(encoding="utf-8"))]


def _notebook_of(path: Path) -> Any:
    """A chapter as myst-nb reads it: the cache compares cells by their text."""
    from myst_nb.core.read import read_myst_markdown_notebook

    return read_myst_markdown_notebook(path.read_text(encoding="utf-8"), add_source_map=True, path=str(path))


def _open(cache: Path) -> Any:
    from jupyter_cache import get_cache

    return get_cache(cache)


def _read_keys(record: Path) -> dict[str, str]:
    try:
        return dict(json.loads(record.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
