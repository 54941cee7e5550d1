"""Fixtures that several test files share."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from pathlib import Path

import pytest

from autograder.checks import check
from autograder.grade.jail import missing
from autograder.grade.running import workers
from autograder.lesson import course_settings, notebook
from tests.helpers import browser, firefox, hub, website
from tests.helpers.jailed import jail, jailed  # noqa: F401 (fixtures of several files)

#: The seed of the inputs of all checks here, also in the processes that tests start. With it a change fails by its own
#: fault and not by luck. `make`, `make audit` and students draw new inputs.
INPUTS = 2026
os.environ.setdefault(check.SEED, str(INPUTS))

SKIPPED = pytest.StashKey[dict]()
NEEDS = {
    "browser": ("Chromium", browser.INSTALL),
    "firefox": ("Firefox", firefox.INSTALL),
    "hub": ("npm", hub.INSTALL),
    "jail": ("bubblewrap", "install bubblewrap (Debian: apt-get install bubblewrap)"),
}


@pytest.fixture(autouse=True, scope="session")
def without_the_course_of_whoever_runs_this():
    """The tests judge the repository: a `course.toml` that an instructor has in it does not count in this process."""
    of = course_settings.of

    def of_others(root):
        here = Path(root).resolve() == notebook.ROOT
        return course_settings.Settings(solutions=notebook.SOLUTIONS) if here else of(root)

    course_settings.of = of_others
    yield
    course_settings.of = of


#: The files whose tests take longest. They begin first, so that all processes end at about the same time.
LONGEST = ("test_book", "test_generator", "test_grading", "test_solutions", "test_audit", "test_jail", "test_workers")


def pytest_itemcollected(item):
    """With `-n 4 --dist loadgroup`, a file's tests run in one process, except those that are marked `apart`.

    So do all tests that look at the book, which is built once: the others would only wait for it. They are part of
    `make thorough`. `-k chapter_05` takes those that open this chapter.
    """
    looks_at_the_book = "book" in getattr(item, "fixturenames", ())
    if looks_at_the_book:  # which takes minutes to build
        item.add_marker(pytest.mark.thorough)
    item.extra_keyword_matches.update(name for name in getattr(item, "fixturenames", ()) if name.startswith("chapter_"))
    if not item.get_closest_marker("apart"):
        item.add_marker(pytest.mark.xdist_group("book" if looks_at_the_book else item.path.stem))


@pytest.hookimpl(trylast=True)  # after what -k and -m leave out
def pytest_collection_modifyitems(config, items):
    """The longest files first; then without what cannot run here."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))
    _skip_what_cannot_run(config, items)


def pytest_collection_finish(session):
    """Stop if pytest-xdist does not group: the tests of one file would build the book in two processes at once."""
    if getattr(session.config.option, "loadgroup", False):
        alone = [item for item in session.items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid]
        if alone:
            raise pytest.UsageError("this pytest-xdist does not group tests: install the versions in requirements.lock")


def _skip_what_cannot_run(config, items):
    """Tests that need a browser, bubblewrap or npm are skipped without it, except in CI, where they fail."""
    if os.environ.get("CI"):
        return
    skipped = config.stash.setdefault(SKIPPED, {})
    found = {"browser": browser.find(), "firefox": firefox.find()}
    found |= {"jail": not missing(), "hub": hub.can_have_proxy()}
    for marker, there in found.items():
        for item in items:
            if not there and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"needs {NEEDS[marker][0]}"))
                skipped[marker] = skipped.get(marker, 0) + 1


#: No thorough test begins after this time (seconds since 1970), which CI sets: a slow machine would be stopped there.
BEGIN_UNTIL = "THOROUGH_TESTS_BEGIN_UNTIL"
TOO_LATE = "not begun: the time that CI has for thorough tests was over (`make thorough` runs it)"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip a thorough test that would begin too late."""
    if item.get_closest_marker("thorough") and time.time() > float(os.environ.get(BEGIN_UNTIL) or "inf"):
        pytest.skip(TOO_LATE)


def pytest_terminal_summary(terminalreporter, config):
    """Say what was left out and what would put it back in."""
    late = [report.nodeid for report in terminalreporter.stats.get("skipped", []) if TOO_LATE in str(report.longrepr)]
    for nodeid in late:
        terminalreporter.line(f"{nodeid}: {TOO_LATE}", yellow=True)
    for marker, count in config.stash.get(SKIPPED, {}).items():
        terminalreporter.line(f"{count} {marker} tests were skipped: {NEEDS[marker][1]}", yellow=True)


@pytest.fixture(scope="session")
def book() -> Path:
    """The built book's folder; built now when something changed since it was built.

    `make figure` names one in the variable BOOK that has a single page.
    """
    if "BOOK" in os.environ:
        return Path(os.environ["BOOK"])
    root = Path(__file__).resolve().parent.parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    (root / "_build").mkdir(exist_ok=True)
    with open(root / "_build" / ".book.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds at once would remove each other's files
        made = subprocess.run(["make", "book"], cwd=root, env=environment, capture_output=True, text=True)
    if made.returncode:
        pytest.fail("the book does not build:\n" + made.stderr[-3000:], pytrace=False)
    return root / "_build" / "html"


@pytest.fixture(scope="session")
def site(book):
    """The URL of the built book on a server, for tests of what pages remember.

    Chromium on a busy machine sometimes loses what a page opened from disk stores: the next page reads an older value.
    """
    with website.served(book) as url:
        yield url


#: Where workers are what is tested.
OWN_WORKERS = {"test_workers", "test_limits", "test_fuzz", "test_attacks"}


@pytest.fixture(autouse=True)
def one_worker_is_this_process(request, monkeypatch):
    """A single worker is the test's own process, which keeps its jail: starting another one takes seconds each time."""
    if request.path.stem not in OWN_WORKERS:
        start = workers.Workers._start_pool
        monkeypatch.setattr(workers.Workers, "_start_pool", lambda self: start(self) if self.jobs > 1 else None)


@pytest.fixture(scope="module")
def chromium():
    """One browser for all tests of a file."""
    with browser.chromium() as started:
        yield started
