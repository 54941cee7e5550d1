"""`python -m ranks script.py:worker -n 4`: run a worker of a file, without a notebook or a program around it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import ranks

#: The name under which each process imports the script: `if __name__ == "__main__":` is for another launcher.
SCRIPT = "ranks_script"


def main(argv: list[str] | None = None) -> int:
    """Run the command; its exit status: 1 if a rank fails or hangs, 2 if there is nothing to run."""
    parser = argparse.ArgumentParser(prog="python -m ranks", description=(__doc__ or "").split(": ", 1)[1])
    parser.add_argument("worker", metavar="FILE:FUNCTION", help="worker(rank, world_size, *arguments), and its file")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*", help="given to the worker, as text")
    parser.add_argument("-n", type=int, default=4, metavar="N", dest="world_size", help="ranks (default: 4)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="limit for the run (default: 60)"
    )
    parser.add_argument("--timeline", metavar="FIGURE", help="draw the messages into this file (.png, .svg, .pdf)")
    given = parser.parse_intermixed_args(argv)
    file, _, name = given.worker.rpartition(":")
    try:
        _load(file, name)
        return _show(given, (file, name, *given.arguments))
    except (OSError, ValueError) as error:
        print(f"ranks: {error}", file=sys.stderr)
        return 2


def _show(given: argparse.Namespace, arguments: tuple[str, ...]) -> int:
    """Run it and print what came of it; the exit status."""
    shown: ranks.Results | ranks.HangError
    try:
        shown = ranks.run(_of_file, given.world_size, arguments, given.timeout)
    except ranks.RankError as error:
        print(error, file=sys.stderr)
        return 1
    except ranks.HangError as error:
        print(error, file=sys.stderr)
        shown = error
    else:
        print(shown.ledger)
        for rank, value in enumerate(shown):
            print(f"rank {rank} returned {value!r}")
    if given.timeline:
        shown.timeline().savefig(given.timeline)
    return int(isinstance(shown, ranks.HangError))


def _load(file: str, name: str) -> Callable[..., Any]:
    """The function of this name in a file, which runs as a module. ValueError if there is none."""
    path = Path(file).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"there is no Python file {file!r}: name a worker as FILE:FUNCTION, such as script.py:worker")
    sys.path.insert(0, str(path.parent))  # as where Python runs it
    spec = spec_from_file_location(SCRIPT, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[SCRIPT] = module_from_spec(spec)
    spec.loader.exec_module(module)
    worker: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(worker):
        raise ValueError(f"{file} has no function {name!r}")
    return worker


def _of_file(rank: int, world_size: int, file: str, name: str, *arguments: str) -> Any:
    """On one rank: import the file, as `torchrun` does, and call its function."""
    return _load(file, name)(rank, world_size, *arguments)


if __name__ == "__main__":
    sys.exit(main())
