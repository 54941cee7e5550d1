"""What the book remembers of a reader, in the browser alone: first answers and finished chapters."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from autograder.lesson import notebook
from tests.helpers.browser import Tab

pytestmark = pytest.mark.browser

CHAPTER, OTHER = notebook.lessons()[:2]
NO_STORAGE = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('off'); }})"


@pytest.fixture
def tab(chromium):
    return Tab(chromium)


@pytest.fixture
def go(tab, site):
    def go(name):
        tab.page.goto(f"{site}book/{name}.html")

    return go


def option(tab, right, quiz=0):
    return tab.page.locator(".quiz").nth(quiz).locator(f".quiz-option[data-right={str(right).lower()}]").first


def answer(tab, right, quiz=0):
    """Open an option, and wait until the page has remembered an answer: it does so a moment after the click."""
    option(tab, right, quiz).locator("summary").click()
    expect(tab.page.locator(".quiz-memory").nth(quiz)).not_to_be_empty()


def memory(tab, quiz=0):
    return tab.page.locator(".quiz-memory").nth(quiz).text_content()


def home_says(tab, text):
    """Wait until the home page's line of progress contains this text (a str) or matches it (a pattern)."""
    expect(tab.page.locator("#progress [role=status]")).to_contain_text(text)


def marks(tab):
    return tab.page.locator(".progress-mark").all_inner_texts()


def test_the_first_answer_counts_and_is_remembered(tab, go):
    go(CHAPTER)
    questions = tab.page.locator(".quiz").count()
    assert tab.page.locator(".chapter-answers").inner_text() == f"{questions} questions, none answered yet"
    answer(tab, right=False)
    letter = option(tab, right=False).get_attribute("data-letter")
    assert memory(tab) == f"Your first answer was {letter}: wrong."
    answer(tab, right=True)
    assert memory(tab) == f"Your first answer was {letter}: wrong.", "a second try changes nothing"
    answer(tab, right=True, quiz=1)
    go(CHAPTER)
    assert memory(tab) == f"Your first answer was {letter}: wrong."
    assert "right." in memory(tab, quiz=1)
    assert "quiz-chosen" in option(tab, right=False).get_attribute("class")
    said = tab.page.locator(".chapter-answers").inner_text()
    assert said == f"2 of {questions} questions answered, 1 right at the first try"
    go("index")
    home_says(tab, f"0 of {len(notebook.lessons())} chapters finished; 2 questions answered, 1 right at the first try.")
    assert marks(tab) == [f"2/{questions}"]
    assert not tab.errors


def test_a_finished_chapter_is_ticked_at_home_until_it_is_erased(tab, go):
    for name in (CHAPTER, OTHER):
        go(name)
        tab.page.get_by_label("I have finished this chapter").check()
    go(OTHER)
    tab.page.get_by_label("I have finished this chapter").uncheck()
    go("index")
    home_says(tab, re.compile(f"^1 of {len(notebook.lessons())} chapters finished; 0 questions"))
    assert marks(tab) == ["✓"]
    tab.page.on("dialog", lambda dialog: dialog.accept())
    tab.page.get_by_role("button", name="Erase").click()
    home_says(tab, re.compile("^0 of "))
    assert marks(tab) == []
    go(CHAPTER)
    assert not tab.page.get_by_label("I have finished this chapter").is_checked()


def test_it_goes_to_another_browser_in_a_file(chromium, tab, go, site, tmp_path):
    go(CHAPTER)
    answer(tab, right=True)
    go("index")
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="Save to a file").click()
    saved = tmp_path / "progress.json"
    download.value.save_as(saved)
    (kept,) = json.loads(saved.read_text())["chapters"][CHAPTER]["answers"].values()
    assert kept["right"] is True
    there = Tab(chromium)
    there.page.goto(site + "book/index.html")
    there.page.evaluate("localStorage.clear()")
    there.page.reload()
    home_says(there, "0 questions")
    there.page.locator("#progress input").set_input_files(saved)
    home_says(there, "1 question answered, 1 right at the first try. Loaded.")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"chapters": null}', '{"chapters": 3}', "null"],
    ids=["empty", "list", "cut", "null", "3", "no"],
)
def test_a_file_of_something_else_changes_nothing(tab, go, tmp_path, text):
    go(CHAPTER)
    answer(tab, right=True)
    go("index")
    other = tmp_path / "other.json"
    other.write_text(text)
    tab.page.locator("#progress input").set_input_files(other)
    home_says(tab, re.compile("1 question answered.*This file holds no progress"))
    assert not tab.errors


def test_what_is_strange_in_a_file_is_left_out(tab, book, tmp_path):
    strange = {CHAPTER: {"finished": "yes", "questions": "<b>", "answers": {"question-1": {"letter": "<img>"}, "x": 1}}}
    file = tmp_path / "strange.json"
    file.write_text(json.dumps({"chapters": strange | {"<img src=x onerror=alert(1)>": {}, OTHER: None}, "more": 1}))
    tab.page.goto((book / "book" / "index.html").as_uri())  # from disk, where a single page remembers, too
    tab.page.locator("#progress input").set_input_files(file)
    home_says(tab, re.compile("^0 of .*Loaded[.]"))
    kept = json.loads(tab.evaluate("localStorage.getItem('distributed-training-progress')"))
    assert kept == {"chapters": {CHAPTER: {"finished": False, "questions": 0, "answers": {}}}}


def test_without_storage_everything_else_works(tab, go):
    tab.page.add_init_script(NO_STORAGE)
    go(CHAPTER)
    answer(tab, right=True)
    assert "right." in memory(tab)
    tab.page.get_by_label("I have finished this chapter").check()
    go("index")
    home_says(tab, "This browser stores nothing for the book")


def test_without_scripts_nothing_of_it_is_there(chromium, book):
    page = chromium.new_context(java_script_enabled=False).new_page()
    page.goto((book / "book" / "index.html").as_uri())
    assert not page.locator("#progress").is_visible()
    page.goto((book / "book" / f"{CHAPTER}.html").as_uri())
    assert page.locator(".quiz").count() and not page.locator(".chapter-progress").count()
