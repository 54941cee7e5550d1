"""The numbers and captions of figures, the picture that opens large, and the links of theorems to themselves."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from tests.helpers.browser import Tab

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book" / "_ext"))
import figure_numbers


def articles(book):
    """(number of the chapter, its article) of every chapter."""
    for page in sorted((book / "book").glob("[0-9][0-9]_*.html")):
        yield int(page.name[:2]), BeautifulSoup(page.read_text(), "html.parser").article


def test_figures_are_numbered_in_the_order_of_the_page_and_captioned_in_a_line(book):
    for chapter, article in articles(book):
        pictures = article.select("div.cell_output img, .live-still svg")
        figures = article.select("figure.book-figure")
        assert [figure.select_one("img, svg") for figure in figures] == pictures, chapter
        for place, (figure, picture) in enumerate(zip(figures, pictures, strict=True), 1):
            link = figure.select_one("figcaption a")
            assert link.get_text() == f"Figure {chapter}.{place}"
            assert link["href"] == f"#{figure['id']}" == f"#figure-{chapter}-{place}"
            caption = figure.figcaption.get_text().removeprefix(link.get_text()).strip()
            alt = picture.get("alt") or picture["aria-label"]
            assert 8 < len(caption) <= 110, f"{link.get_text()}: {caption}"
            assert caption != alt


@pytest.mark.parametrize(
    ("code", "title"),
    [
        ('ax.set(title="One")', "One"),
        ('ax.set_title("One", fontsize=10)', "One"),
        ('results.timeline(title="One")', "One"),
        ('left.set(title="One")\nright.set(title="Two")', ""),
        ('ax.set(title=f"{n} ranks")', ""),
        ('ax.set_title("▼ all-gather")', ""),
        ('ax.set(xlabel="step")', ""),
    ],
)
def test_the_title_of_a_picture_is_read_from_its_code(code, title):
    assert figure_numbers.title_of(code) == title


def test_a_caption_is_not_the_whole_alternative():
    assert figure_numbers.first_words("Two trees. The left one has inner ranks.") == "Two trees."
    assert figure_numbers.first_words("Bars of the activations on a rank, five ways each.") == (
        "Bars of the activations on a rank"
    )


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 390])
def test_without_a_caption_the_button_stands_in_the_corner_of_its_picture(chromium, book, width):
    tab = Tab(chromium, width)
    tab.open((book / "book" / "index.html").as_uri())
    places = tab.evaluate(
        """[...document.querySelectorAll("img.zoomable")].filter((one) => !one.closest("figure")).map((picture) => [
          picture, picture.nextElementSibling].map((one) => one.getBoundingClientRect().toJSON()))"""
    )
    assert places
    for picture, button in places:
        assert abs(button["right"] - picture["right"]) < 4 and abs(button["top"] - picture["top"]) < 4
    player = tab.page.locator(".ledger-player").first.bounding_box()
    assert player["y"] >= places[0][0]["bottom"] - 1


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    ("page", "number", "kind"), [("05_ddp", "5.2", "img"), ("13_context", "13.3", "svg.two-nodes")]
)
def test_a_picture_opens_large_and_gives_the_focus_back(chromium, book, page, number, kind, width):
    tab = Tab(chromium, width)
    tab.open((book / "book" / f"{page}.html").as_uri())
    figure = tab.page.locator(f"#figure-{number.replace('.', '-')}")
    button = figure.locator(".zoom-button")
    assert button.get_attribute("aria-label") == f"Enlarge Figure {number}"
    before = figure.locator(kind).bounding_box()["width"]
    button.focus()
    tab.page.keyboard.press("Enter")
    tab.wait("document.querySelector('dialog.zoom[open] .zoom-stage > *')?.getBoundingClientRect().width > 0")
    assert tab.page.locator(f"dialog.zoom {kind}").bounding_box()["width"] > 1.5 * before
    tab.page.keyboard.press("Escape")
    tab.wait("!document.querySelector('dialog.zoom[open]')")
    assert tab.evaluate("document.activeElement.className") == "zoom-button"
    figure.locator(kind).click()
    tab.page.locator("dialog.zoom button").click()
    tab.wait("!document.querySelector('dialog.zoom[open]')")
    assert tab.evaluate("document.activeElement.className") == "zoom-button"
    assert not tab.errors


def test_theorems_link_to_themselves_and_ids_stand_once(book):
    for chapter, article in articles(book):
        for theorem in article.select("div.proof[id]"):
            assert theorem.select_one(".admonition-title > a.headerlink")["href"] == f"#{theorem['id']}"
        ids = [tag["id"] for tag in article.find_all(id=True)]
        assert not {one for one in ids if ids.count(one) > 1}, chapter


@pytest.mark.browser
def test_a_proof_has_an_end(chromium, book):
    tab = Tab(chromium)
    tab.open((book / "book" / "05_ddp.html").as_uri())
    mark = "getComputedStyle(document.querySelector('div.proof:not([id]) > p:last-child'), '::after').content"
    assert re.match(r'"∎"', tab.evaluate(mark))
