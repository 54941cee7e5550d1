"""`python -m autograder chapters`: forget the outputs of chapters whose code has changed since they ran.

myst-nb keeps a chapter's outputs as long as its own cells are the same. What the cells import counts as well: the
runtime, and the solutions that they take functions from (`keys.of_chapter`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from autograder.lessons import keys, notebook
from autograder.lessons.files import write_whole

BOOK = notebook.ROOT / "book"
CACHE = notebook.ROOT / "_build" / "jupyter_cache"


def add_parser(subparsers) -> None:
    """Add the subcommand `chapters`."""
    parser = subparsers.add_parser("chapters", help="forget the outputs of chapters whose code has changed")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    for name in forget_stale():
        print(f"{name}: runs again, since what it imports has changed")
    return 0


def forget_stale(cache: Path | None = None) -> list[str]:
    """Remove the outputs of changed chapters from the cache and write down the chapters' keys; the names of those."""
    cache = cache or CACHE
    record = cache.with_name(f"{cache.name}.json")
    now = {str(path.relative_to(BOOK)): keys.of_chapter(path) for path in sorted(BOOK.rglob("*.md"))}
    before = _read(record)
    stale = [name for name, key in now.items() if before.get(name) != key]
    removed = _remove(cache, stale) if cache.is_dir() and stale else []
    write_whole(record, json.dumps(now, indent=1))
    return removed


def _read(record: Path) -> dict[str, str]:
    try:
        return dict(json.loads(record.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _remove(cache: Path, chapters: list[str]) -> list[str]:
    from jupyter_cache import get_cache

    store = get_cache(cache)
    places = {str(BOOK / name): name for name in chapters}
    found = {record.pk: places[str(record.uri)] for record in store.list_cache_records() if str(record.uri) in places}
    for key in found:
        store.remove_cache(key)
    return sorted(found.values())
