"""What each attack tries and gets: `python -m tests.attacks.table` grades them, `--page` writes the book's page."""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

from tests.attacks import catalog, lessons
from tests.attacks.attack import Attack
from tests.attacks.course import Machine, Run
from tests.attacks.lessons import ON_RANKS

PAGE = Path(__file__).resolve().parents[2] / "book" / "start" / "attacks.md"

RULE = "|---|---|---|\n"


def main() -> None:
    """Grade what is asked for, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks to grade (default: all)")
    parser.add_argument("--page", action="store_true", help="write the table into the book instead")
    arguments = parser.parse_args()
    if arguments.page:
        PAGE.write_text(page(), encoding="utf-8")
        return
    chosen = [attack for attack in catalog.ATTACKS if not arguments.names or attack.name in arguments.names]
    for name, points in grade(chosen).items():
        print(f"{name}: {points} for work worth {sum(catalog.find(name).worth.values()):g}")


def page() -> str:
    """The page of the book with the attacks of today: how many, and what the honest part of each is worth."""
    head = PAGE.read_text(encoding="utf-8").split(RULE)[0]
    head, count = re.subn(r"\d+(?= hostile submissions)", str(len(catalog.ATTACKS)), head)
    assert count == 1, "the page does not say how many hostile submissions there are"
    rows = []
    for attack in catalog.ATTACKS:
        here = f"{sum(attack.worth.values()):g} of {sum(lessons.full(attack.lesson).values()):g}"
        row = (f"`{attack.name}`", attack.tries, here)
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |\n")
    return head + RULE + "".join(rows)


def grade(chosen: list[Attack]) -> dict[str, str]:
    """What the grader gives for each attack."""
    given = {}
    parts = [[attack for attack in chosen if attack.lesson not in ON_RANKS]]
    parts += [[attack for attack in chosen if attack.lesson == lesson] for lesson in ON_RANKS]
    for part in filter(None, parts):
        with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
            machine = Machine(Path(folder)).build(part, timeout=60 if part[0].lesson in ON_RANKS else 5)
            run = Run(machine, timeout=900)
            for student, attack in machine.roster.items():
                if attack:
                    given[attack.name] = f"{sum(run.points(student, attack.lesson).values()):g}"
    return given


if __name__ == "__main__":
    main()
