"""Check a tag before a release, and print what the changelog says about it: `python .ci/release.py v0.3.0`.

The version of the course stands in CITATION.cff; `ranks` has one of its own. Uses the standard library only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    """The version of the course and of the book, which CITATION.cff names."""
    return re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]


def notes(of: str) -> str:
    """The changelog's section on a version; "" if there is none."""
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    found = [section for section in sections if re.split(r"[:\s]", section, maxsplit=1)[0] == of]
    return f"## {found[0].strip()}" if found else ""


def problems(tag: str) -> list[str]:
    """What keeps this tag from being released, a line each."""
    found = []
    if tag != f"v{version()}":
        found.append(f"the tag is {tag}, but CITATION.cff says {version()}: change it there, or tag v{version()}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version()):
        found.append(f"{version()} is the version of work in progress: take off what follows its three numbers")
    if not notes(version()):
        found.append(f"CHANGELOG.md has no section `## {version()}`: rename the section on what is unreleased")
    return found


if __name__ == "__main__":
    wrong = problems(sys.argv[1])
    for line in wrong:
        print(f"release: {line}", file=sys.stderr)
    print("" if wrong else notes(version()))
    sys.exit(bool(wrong))
