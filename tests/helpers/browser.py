"""Headless Chromium for tests, through Playwright: a page is opened with the network off, watched and asked things.

`python -m tests.helpers.browser --find` prints Chromium's path; it exits 1 and says so when there is none.
`python -m tests.helpers.browser PAGE[#PLACE] PNG [WIDTH HEIGHT]` takes a picture of a page of the book.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.helpers.patience import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = ("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",)
INSTALL = "install Chromium (Debian: apt-get install chromium), or name one in the variable CHROMIUM"

FLAGS = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # The network is off: no name resolves, and nothing listens at the proxy. This machine's own servers can be reached.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--proxy-server=http://127.0.0.1:9",
]


#: A promise that is kept once a page has been drawn again.
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def find() -> str | None:
    """The path of the browser to use, or None."""
    return installed("CHROMIUM", *NAMES, *PLACES)


def installed(variable: str, *candidates: str) -> str | None:
    """The path of the program that an environment variable names, else of the first of these; or None."""
    named = os.environ.get(variable)
    return next((path for name in ([named] if named else candidates) if (path := shutil.which(name))), None)


def pages(book: Path) -> list[Path]:
    """The pages of a built book, without its front door: that one sends the browser on while a test looks at it."""
    found = (page for page in book.rglob("*.html") if not page.is_relative_to(book / "_static"))
    return sorted(page for page in found if page != book / "index.html")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without windows; `Tab` opens one. Raises RuntimeError where Chromium is not installed."""
    from playwright.sync_api import expect, sync_playwright  # not needed to find the browser

    path = find()
    if path is None:
        raise RuntimeError(f"no browser: {INSTALL}")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, chromium_sandbox=not root)
        expect.set_options(timeout=1000 * PATIENCE)
        browser.new_page = _patient(browser.new_page)
        browser.new_context = _patient(browser.new_context)
        try:
            yield browser
        finally:
            browser.close()


def _patient(new: Callable[..., Any]) -> Callable[..., Any]:
    """`new_page` or `new_context`, of which nothing gives up on a busy machine."""

    def made(**options: Any) -> Any:
        page = new(**options)
        page.set_default_timeout(1000 * PATIENCE)
        return page

    return made


class Tab:
    """A new window, with storage of its own, in CSS pixels; below 500 wide it counts as a phone.

    page: Playwright's page. requests: URLs that were asked for since `open`. errors: script and console errors since.
    """

    def __init__(self, browser: Browser, width: int = 1280, height: int = 900):
        self.page = browser.new_page(viewport={"width": width, "height": height}, is_mobile=width < 500)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._console)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "assert"):
            self.errors.append(message.text)

    @property
    def outside(self) -> list[str]:
        """The requests that leave this machine, or would."""
        here = ("file:", "data:", "blob:", "http://127.0.0.1:")
        return [url for url in self.requests if not url.startswith(here)]

    def open(self, url: str) -> None:
        """Load a page and wait until its scripts have run and its fonts are there."""
        self.requests.clear()
        self.errors.clear()
        self.page.goto(url)
        self.wait("document.fonts.status === 'loaded'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, as plain data; promises are awaited."""
        return self.page.evaluate(expression)

    def wait(self, expression: str) -> None:
        """Wait until an expression is true, also on a page that this one sends us on to."""
        self.page.wait_for_function(expression)

    def drawn(self) -> None:
        """Wait until the page has drawn what was asked of it before."""
        self.page.evaluate(DRAWN)

    def wait_for_kernel(self) -> None:
        """Wait until JupyterLab's status bar says that the notebook's kernel is idle; earlier, it asks for one."""
        self.wait("document.querySelector('#jp-main-statusbar')?.innerText.includes('| Idle')")


def main(arguments: list[str]) -> int:
    """The commands above; the exit status."""
    if arguments == ["--find"]:
        print(find() or f"no browser: {INSTALL}")
        return 0 if find() else 1
    page, png, *size = arguments
    with chromium() as browser:
        tab = Tab(browser, *(int(number) for number in size))
        file, _, place = page.partition("#")
        tab.open(Path(file).resolve().as_uri() + ("#" + place if place else ""))
        tab.page.wait_for_timeout(500)  # what fades or scrolls has arrived
        tab.page.screenshot(path=png)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
