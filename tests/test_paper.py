"""The book as a PDF and as an EPUB."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
import unicodedata
import zipfile
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup
from pypdf import PdfReader

from autograder.lessons.notebook import ROOT, lessons
from tests.helpers import epubcheck

pytestmark = pytest.mark.thorough

XHTML = "{http://www.w3.org/1999/xhtml}"
OPF = "{http://www.idpf.org/2007/opf}"


def written(book, path):
    """Run the program that writes a file of this kind."""
    program = ROOT / ".ci" / f"{path.suffix[1:]}.py"
    done = subprocess.run([sys.executable, program, book, path], capture_output=True, text=True, timeout=3600)
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


def test_the_epub_is_well_formed_and_whole(book, headings, tmp_path):
    with zipfile.ZipFile(written(book, tmp_path / "book.epub")) as archive:
        assert archive.infolist()[0].filename == "mimetype" and archive.read("mimetype") == b"application/epub+zip"
        names = set(archive.namelist())
        trees = {name: ElementTree.fromstring(archive.read(name)) for name in names if name.endswith("ml")}
        package = ElementTree.fromstring(archive.read("content.opf"))
        pictures = [archive.read(name) for name in names if name.endswith(".svg")]
    listed = {item.get("href") for item in package.iter(f"{OPF}item")}
    assert listed == names - {"mimetype", "META-INF/container.xml", "content.opf"}
    ids = {name: {tag.get("id") for tag in tree.iter()} for name, tree in trees.items()}
    for name, tree in trees.items():
        given = [tag.get("id") for tag in tree.iter() if tag.get("id")]
        assert len(given) == len(set(given)), f"{name} gives a name twice"
        for tag in tree.iter():
            link = tag.get("href") or tag.get("src") or ""
            if link and "://" not in link and not link.startswith("mailto:"):
                file, _, anchor = link.partition("#")
                file = posixpath.normpath(file) if file else name
                assert file in names and (not anchor or anchor in ids[file]), f"{name}: {link} leads nowhere"
    text = " ".join("".join(tree.itertext()) for tree in trees.values())
    assert all(heading in text for heading in headings)
    formulas = sum(len(tree.findall(".//{http://www.w3.org/1998/Math/MathML}math")) for tree in trees.values())
    drawn = [tag for tree in trees.values() for tag in tree.iter("{http://www.w3.org/2000/svg}svg")]
    assert len(drawn) > 50 and not any("viewbox" in tag.attrib for tag in drawn)
    assert sum("viewBox" in tag.attrib for tag in drawn) > 50
    assert len(pictures) > 20 and not any(b"<!DOCTYPE" in picture for picture in pictures)
    assert formulas > 1000 and not any(tree.findall(f".//{XHTML}script") for tree in trees.values())


@pytest.mark.epubcheck
def test_epubcheck_has_nothing_to_say_of_the_epub(book, tmp_path):
    epub, said = written(book, tmp_path / "book.epub"), tmp_path / "said.json"
    done = subprocess.run([*epubcheck.command(), epub, "--json", said], capture_output=True, text=True, timeout=900)
    messages = json.loads(said.read_text())["messages"]
    assert not messages and done.returncode == 0, f"{len(messages)} messages, such as {messages[:3]}\n{done.stderr}"


def test_without_a_browser_the_pdf_is_refused_in_one_line(book, tmp_path, monkeypatch):
    monkeypatch.setenv("CHROMIUM", "/nonexistent/browser")
    program = ROOT / ".ci" / "pdf.py"
    done = subprocess.run([sys.executable, program, book, tmp_path / "book.pdf"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("make pdf: no browser") and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
