"""`autograder COMMAND`: each command is in a module of its own."""

# Of what is imported up to the call of execv, all is loaded by then: `from __future__ import …` would not be.
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if __name__ == "__main__" and not sys.flags.safe_path and os.path.realpath(sys.path[0]) != os.path.realpath(ROOT):
    # `python -m` looks for modules in the folder in which it is called, where a student's json.py may lie; so do the
    # processes that it starts. -P ends that; what `python -m` has imported before this line, it cannot undo.
    os.execv(sys.executable, [sys.executable, "-P", *sys.orig_argv[1:]])

import argparse  # noqa: E402
import importlib  # noqa: E402
import io  # noqa: E402
import signal  # noqa: E402

#: Each module adds one subcommand with `add_parser(subparsers)`, and imports slow packages only when it runs.
COMMANDS = (
    "grade.nbgrader.release",
    "lesson.run_solutions",
    "properties",
    "lesson.chapters",
    "audit.audit",
    "grade.command",
    "grade.retry",
    "grade.importing",
    "desk.regrade",
    "desk.report",
    "desk.answers_as_files",
    "author.where",
    "author.generator",
    "author.try_exercise",
    "author.drafts",
    "author.handout",
)


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit status. An error that a person can mend is printed in one line."""
    if not __debug__:
        print(
            "autograder: run it without -O and PYTHONOPTIMIZE, which leave out every assert of a test", file=sys.stderr
        )
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8
    try:
        arguments = parser().parse_args(argv)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "autograder":
            raise
        remedy = "run `source .venv/bin/activate` first (and `make setup` before that, once)"
        print(f"autograder: {sys.executable} has no package {error.name}: {remedy}", file=sys.stderr)
        return 2
    try:
        return arguments.run(arguments) or 0
    except (ValueError, OSError) as error:
        print(f"autograder: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nautograder: interrupted; what was finished is kept, and the next run goes on", file=sys.stderr)
        return 130
    except Exception as error:
        if "sqlalchemy" not in sys.modules or not (line := _about_gradebook(error)):
            raise
        print(f"autograder: {line}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = argparse.ArgumentParser(prog="autograder", description=(__doc__ or "").split(":")[0])
    subparsers = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"autograder.{name}").add_parser(subparsers)
    return whole


def _about_gradebook(error: Exception) -> str:
    from autograder.grade.nbgrader.library import trouble_with_gradebook

    return trouble_with_gradebook(error)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that workers are ended and files removed
    sys.exit(main())
