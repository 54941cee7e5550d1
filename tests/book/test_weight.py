"""How heavy the pages are, and how fast they are there. `python -m tests.book.test_weight` prints a table."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.helpers import browser
from tests.helpers.browser import Tab, pages

#: Bytes of a page and of all that it loads before anybody touches it. The heaviest is the search, whose index grows
#: with the book.
HEAVIEST = 1_650_000
#: Seconds until a page's text is there and its scripts have run, once the browser is warm; twice what is asked for,
#: since other tests may run on the machine at the same time.
SLOWEST = 2.0


def weight(tab: Tab, page: Path) -> tuple[int, int, float]:
    """(bytes of the page, bytes with what it loads, seconds until it is there)."""
    tab.open(page.as_uri())
    files = {Path(unquote(urlsplit(url).path)) for url in tab.requests if url.startswith("file:")}
    seconds = tab.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd") / 1000
    return page.stat().st_size, sum(file.stat().st_size for file in files if file.is_file()), seconds


@pytest.mark.browser
def test_no_page_is_heavy_or_slow(book):
    problems = []
    with browser.chromium() as started:
        tab = Tab(started)
        tab.open((book / "book" / "index.html").as_uri())
        for page in pages(book):
            _, total, seconds = weight(tab, page)
            if seconds > SLOWEST:  # something else may have had the machine
                seconds = min(seconds, weight(tab, page)[2])
            name = page.relative_to(book)
            problems += [f"{name} weighs {total:,} bytes"] if total > HEAVIEST else []
            problems += [f"{name} takes {seconds:.1f} s"] if seconds > SLOWEST else []
    assert not problems, "\n".join(problems)


@pytest.mark.browser
def test_the_icons_are_drawn_although_their_script_is_gone(book):
    with browser.chromium() as started:
        tab = Tab(started)
        tab.open((book / "book" / "05_ddp.html").as_uri())
        assert not [url for url in tab.requests if "fontawesome" in url or "searchindex" in url]
        drawn = tab.evaluate(
            """[...document.querySelectorAll("i[class*='fa-']")].filter((icon) => icon.offsetParent).map((icon) => ({
              name: icon.className, content: getComputedStyle(icon, "::before").content,
              there: document.fonts.check(`900 16px "Font Awesome 6 Free"`, "\\uf0c9"), width: icon.offsetWidth}))"""
        )
        assert len(drawn) > 4
        for icon in drawn:
            assert icon["content"] not in ("none", '""') and icon["there"] and icon["width"] > 5, icon


def main(book: Path) -> None:
    with browser.chromium() as started:
        tab = Tab(started)
        for page in pages(book):
            own, total, seconds = weight(tab, page)
            print(f"{total / 1e6:6.2f} MB {own / 1e6:6.2f} MB {1000 * seconds:6.0f} ms  {page.relative_to(book)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "_build" / "html")
