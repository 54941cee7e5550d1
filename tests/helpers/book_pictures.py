"""Makes the pictures of formgrader and of a feedback page that the book shows: python -m tests.helpers.book_pictures

They show the example class, which `make` has graded in `_build/example-class`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from autograder.grade import example_class
from autograder.lesson import notebook
from tests.helpers.browser import Tab, chromium
from tests.helpers.formgrader_server import Server

PICTURES = notebook.ROOT / "book" / "start"
LESSON, STUDENT, EXERCISE = "01_collectives", "student-03", "01-ex2-reduce-scatter"


def formgrader(tab: Tab, root: Path) -> None:
    """The list of the lesson's submissions, with their points."""
    server = Server(root)
    try:
        tab.open(f"{server.url}/login?token={server.token}")
        tab.open(f"{server.url}/formgrader/manage_submissions/{LESSON}")
        tab.wait("document.querySelectorAll('tbody tr').length >= 4 && !document.body.innerText.includes('Loading')")
        tab.page.screenshot(path=PICTURES / "formgrader.png")
    finally:
        server.stop()


def feedback(tab: Tab, root: Path) -> None:
    """An exercise that lost its points, from its title to the messages of the ranks."""
    tab.open((root / "feedback" / STUDENT / LESSON / f"{LESSON}.html").as_uri())
    tab.evaluate(f"document.getElementById('{EXERCISE}').scrollIntoView()")
    tab.page.wait_for_timeout(500)  # what scrolls has arrived
    tab.page.screenshot(path=PICTURES / "feedback.png")


def main() -> int:
    """Make both, from a copy: a server leaves files of its own."""
    if not (example_class.EXAMPLE_COURSE / "gradebook.db").is_file():
        print("the example class is not graded yet: run `make` first", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        root = Path(shutil.copytree(example_class.EXAMPLE_COURSE, Path(folder, "class")))
        formgrader(Tab(browser, 1100, 490), root)
        feedback(Tab(browser, 820, 826), root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
