"""`python -m autograder chapters`: run the chapters whose outputs are missing or stale, two at a time.

myst-nb keeps a chapter's outputs in a cache as long as the chapter's own cells are the same, and runs all other
chapters one after another while the book is built. This command runs them before the build, each in a process of its
own, and stores their outputs in that cache. The outputs also depend on what the cells import, the runtime and the
solutions whose functions they use (`keys.of_chapter`); where these have changed, the cached outputs are removed first.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

from autograder.lessons import keys, notebook
from autograder.lessons.files import write_whole
from autograder.lessons.shared_server import share_server

BOOK = notebook.ROOT / "book"
CACHE = notebook.ROOT / "_build" / "jupyter_cache"

#: Seconds for one cell, as in `_config.yml`.
CELL_TIMEOUT = 3600


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand `chapters`."""
    parser = subparsers.add_parser("chapters", help="run the book's chapters whose code has changed")
    parser.add_argument("--jobs", type=int, default=2, help="chapters at once (default: 2)")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status. A chapter that fails is reported by the build, which runs it again."""
    from tqdm import tqdm

    forget_stale(CACHE)
    todo = uncached(CACHE)
    if not todo:
        return 0
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # chapters share the cores: see `run_solutions`
    context = multiprocessing.get_context("spawn")
    with (
        share_server(),
        concurrent.futures.ProcessPoolExecutor(max(1, arguments.jobs), mp_context=context, initializer=_mute) as pool,
    ):
        running = {pool.submit(execute, path): path for path in todo}
        for done in tqdm(concurrent.futures.as_completed(running), total=len(todo), desc="chapters"):
            result = done.result()
            if isinstance(result, str):
                print(f"{running[done].relative_to(notebook.ROOT)}: {result}", file=sys.stderr)
            else:
                _store(CACHE, running[done], *result)
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
    from jupyter_cache.executors.utils import single_nb_execution

    began, nb = time.monotonic(), _notebook_of(path)
    result = single_nb_execution(nb, cwd=str(path.parent), allow_errors=False, timeout=CELL_TIMEOUT, meta_override=True)
    if result.err is not None:
        return f"{type(result.err).__name__}: {str(result.err).strip().splitlines()[-1]}"
    return nb, time.monotonic() - began


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
