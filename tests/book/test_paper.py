"""The book as a PDF."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata

import pytest
from bs4 import BeautifulSoup
from pypdf import PdfReader

from autograder.lesson.notebook import ROOT, lessons

pytestmark = pytest.mark.thorough


PROGRAM = ROOT / ".ci" / "pdf.py"


def written(book, path):
    """Run the program that writes the book."""
    done = subprocess.run([sys.executable, PROGRAM, book, path], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    assert list(path.parent.iterdir()) == [path], "it leaves nothing behind"
    return path


def one_line(text):
    """Without spaces and ligatures, which a PDF has where the source has none."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text))


@pytest.fixture(scope="module")
def headings(book):
    """The titles of the chapters."""
    pages = [book / "book" / f"{lesson}.html" for lesson in lessons()]
    texts = (BeautifulSoup(page.read_text(), "html.parser").select_one("article h1") for page in pages)
    return [text.find(string=True) for text in texts]


@pytest.mark.browser
def test_the_pdf_holds_every_chapter_whole(book, headings, tmp_path):
    reader = PdfReader(written(book, tmp_path / "book.pdf"))
    outline = [one_line(one.title) for one in reader.outline if not isinstance(one, list)]
    titles = [one_line(heading) for heading in headings]  # a title that is wrapped has lost the space
    assert [title for title in outline if title in titles] == titles
    pages = [page.extract_text() for page in reader.pages]
    assert len(pages) > 200 and all(page.strip() for page in pages[2:])
    text = one_line("".join(re.sub(r"\s*\d+\s*$", "", page) for page in pages))  # without the number of the page
    found = 0
    for lesson in lessons():
        source = (ROOT / "book" / f"{lesson}.md").read_text()
        folded = re.findall(r"^- \[[ x]\] .*\n\n  ([A-Za-z ,.]{30,})$", source, re.MULTILINE)  # what needs no markup
        missing = [line for line in folded if one_line(line)[:40] not in text]
        assert not missing, f"{lesson}: what is folded is missing: {missing[0]}"
        found += len(folded)
    assert found > 50
    assert any(page.get("/Annots") for page in reader.pages), "there are links"


def test_without_a_browser_the_pdf_is_refused_in_one_line(book, tmp_path, monkeypatch):
    monkeypatch.setenv("CHROMIUM", "/nonexistent/browser")
    done = subprocess.run([sys.executable, PROGRAM, book, tmp_path / "book.pdf"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("make pdf: no browser") and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
