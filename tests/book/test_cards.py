"""What a link shows before it is followed, and the links of terms to the glossary."""

from __future__ import annotations

import re

import pytest
from bs4 import BeautifulSoup

from tests.helpers.browser import Tab


def links(page, kind):
    """The links of a chapter's text to a kind of place, as they stand in the page."""
    html = BeautifulSoup(page.read_text(), "html.parser")
    return {a["href"] for a in html.article.select("a.internal:not(.headerlink)") if re.search(kind, a.get("href", ""))}


@pytest.mark.parametrize(
    ("kind", "least"),
    [(r"bibliography\.html#", 150), (r"#(thm|lem|def)-", 14), (r"#equation-", 10), (r"glossary\.html#term-", 30)],
)
def test_every_link_to_what_has_a_card_has_one(book, kind, least):
    count = 0
    for page in sorted((book / "book").glob("[0-9][0-9]_*.html")):
        shown = dict(re.findall(r'<template data-card="([^"]*)">(.*?)</template>', page.read_text(), re.DOTALL))
        for link in links(page, kind):
            text = BeautifulSoup(shown.get(link, ""), "html.parser").get_text()
            assert len(text.strip()) > 8, f"{page.name}: {link}"
            assert ' id="' not in shown[link]
            count += 1
    assert count >= least


def test_a_term_is_linked_once_a_chapter_and_never_to_the_chapters_own_table(book):
    for page in sorted((book / "book").glob("[0-9][0-9]_*.html")):
        article = BeautifulSoup(page.read_text(), "html.parser").article
        targets = [term.parent["href"] for term in article.select("a > .glossary-term")]
        words = len(article.get_text().split())
        assert len(targets) == len(set(targets)) <= words / 400, page.name  # of 15 and 17, which name all techniques
        heading = next(h2 for h2 in article.select("h2") if "Key terms" in h2.get_text())
        own = {row.td.get_text().strip() for row in heading.find_next("table").select("tr") if row.td}
        shown = {term.get_text() for term in article.select(".glossary-term")}
        assert not own & shown and "warm-up" not in shown, page.name  # that of the rate, not a pipeline's


CARD = "document.querySelector('.link-card:not([hidden])')?.innerText ?? ''"


@pytest.mark.browser
def test_a_card_shows_for_the_pointer_and_the_keyboard_and_closes(chromium, book):
    tab = Tab(chromium)
    tab.open((book / "book" / "05_ddp.html").as_uri())
    link = tab.page.locator("a.reference[href='#thm-overlap']").first
    link.hover()
    tab.wait(f"({CARD}).includes('The last bucket arrives at')")
    assert tab.evaluate("document.querySelector('[aria-describedby=link-card]').hash") == "#thm-overlap"
    tab.page.locator(".link-card").hover()  # the pointer moves onto the card
    tab.page.wait_for_timeout(400)
    assert tab.evaluate(CARD)
    tab.page.keyboard.press("Escape")
    assert not tab.evaluate(CARD) and not tab.page.locator("[aria-describedby=link-card]").count()

    tab.page.mouse.move(0, 0)
    first = tab.page.locator(".bibtex-citation a").first
    first.focus()
    tab.page.keyboard.press("Shift+Tab")
    tab.page.keyboard.press("Tab")
    assert "Bekman" in tab.evaluate(CARD)
    tab.page.keyboard.press("Tab")
    assert "Bekman" not in tab.evaluate(CARD)
    assert not tab.errors


@pytest.mark.browser
def test_on_a_touch_screen_a_link_is_a_link(chromium, book):
    context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto((book / "book" / "05_ddp.html").as_uri())
    page.locator("a.reference[href='#thm-overlap']").first.tap()
    page.wait_for_timeout(500)
    assert page.evaluate("location.hash") == "#thm-overlap" and not page.evaluate(CARD)
    context.close()
