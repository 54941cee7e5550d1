"""What a published book needs: `book/_ext/published.py`, in the built book and in a small one with all settings."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from io import StringIO
from xml.etree import ElementTree

import pytest
import yaml
from bs4 import BeautifulSoup

from autograder.lesson.notebook import ROOT
from tests.helpers import browser
from tests.helpers.browser import Tab

BASE = "https://example.org/book/"
REPOSITORY = "https://github.com/someone/something"


def built(folder, **settings):
    """A book of two pages, built with these settings."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace

    (folder / "start").mkdir(parents=True)
    (folder / "index.md").write_text(
        "# A book\n\nIt says & shows how two pages become one book.\n\n```{toctree}\nstart/page\n```\n"
    )
    (folder / "start" / "page.md").write_text(
        "# A page\n\nAfter it you can\n\n- read a page to its end;\n- stop.\n\nA copy ({{ clone }}) is yours.\n"
    )
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    own = {
        "extensions": "myst_parser,published,light",
        "myst_enable_extensions": ["substitution"],
        "html_theme": "sphinx_book_theme",
        "html_title": "Two pages",
    }
    try:
        with docutils_namespace():  # what this book registers is not there for the next one
            app = Sphinx(
                folder, None, folder / "html", folder / "trees", "html", {**own, **settings}, status=StringIO(),
                warning=StringIO(),
            )  # fmt: skip
            app.build()
    finally:
        sys.path.remove(str(ROOT / "book" / "_ext"))
    return folder / "html"


def page(folder, name="start/page.html"):
    return BeautifulSoup((folder / name).read_text(), "html.parser")


def tag(html, name):
    found = html.select(f'meta[name="{name}"], meta[property="{name}"]')
    assert len(found) <= 1, name
    return found[0]["content"] if found else None


def test_with_an_address_and_a_repository_pages_have_all_that_needs_one(tmp_path):
    html = page(folder := built(tmp_path / "all", html_baseurl=BASE.rstrip("/"), repository_url=REPOSITORY))
    assert tag(html, "og:url") == f"{BASE}start/page.html"
    assert tag(html, "og:image") == f"{BASE}_static/preview.png"
    assert tag(html, "twitter:card") == "summary_large_image"
    assert tag(html, "description") == tag(html, "og:description") == "After it you can read a page to its end; stop."
    assert tag(page(folder, "index.html"), "description") == "It says & shows how two pages become one book."
    links = {link["href"] for link in html.select("a[href^='https://github.com']")}
    assert {REPOSITORY, f"{REPOSITORY}/edit/main/start/page.md"} <= links
    assert any(link.startswith(f"{REPOSITORY}/issues/new") for link in links)
    assert f"A copy (git clone {REPOSITORY}) is yours." in html.text
    sitemap = ElementTree.parse(folder / "sitemap.xml").getroot()
    assert [entry[0].text for entry in sitemap] == [f"{BASE}index.html", f"{BASE}start/page.html"]
    assert f'href="{BASE}index.html"' in (folder / "404.html").read_text()


def test_without_a_repository_a_page_says_that_there_is_nothing_to_clone(tmp_path):
    assert "A copy (it has no public address yet) is yours." in page(built(tmp_path / "none")).text


def test_each_extension_of_the_book_is_loaded():
    """`config.extensions` replaces the list that Jupyter Book makes of `local_extensions`: each name stands in both."""
    code = "import sys; from pathlib import Path; from jupyter_book.config import get_final_config as final; "
    code += "print(*final(user_yaml=Path(sys.argv[1]), cli_config={'latex_individualpages': False})[0]['extensions'])"
    command = [sys.executable, "-c", code, str(ROOT / "_config.yml")]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout.split()
    local = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]["local_extensions"]
    files = [path.stem for path in (ROOT / "book" / "_ext").glob("*.py") if "def setup(" in path.read_text()]
    assert "quiz" in loaded and sorted(local) == sorted(files)
    missing = [name for name in local if loaded.count(name) != 1]
    assert not missing, f"_config.yml: write these once into sphinx.config.extensions: {', '.join(missing)}"


def test_the_books_extensions_are_jupyter_books_own_and_ours():
    """But those that ask the network, write LaTeX or number parts. An update of Jupyter Book may bring another one."""
    code = "from jupyter_book.config import get_final_config as final; "
    code += "print(*final(cli_config={'latex_individualpages': False})[0]['extensions'])"
    its = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    settings = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]
    ours = {*settings["config"]["extensions"]} - {*settings["local_extensions"]}
    assert ours - {*its.stdout.split()} == {"sphinx_proof", "sphinxcontrib.bibtex"}, (
        "it adds the latter for a book with sources"
    )
    left_out = {"sphinx_thebe", "sphinx.ext.intersphinx", "sphinx_jupyterbook_latex", "sphinx_multitoc_numbering"}
    assert {*its.stdout.split()} - ours == left_out


def test_the_readme_says_where_to_clone_from():
    """It is read before anything is built, so nothing puts the address of `_config.yml` into it."""
    address = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]["config"]["repository_url"]
    readme = (ROOT / "README.md").read_text()
    assert (f"git clone {address}" if address else "has no public address yet") in readme
    assert not address or "has no public address yet" not in readme, "say `git clone …` where it says this"


def test_without_them_nothing_points_to_them(book):
    assert not (book / "sitemap.xml").exists()
    for path in [*(book / "book").rglob("*.html"), book / "search.html"]:
        html = page(path.parent, path.name)
        assert tag(html, "og:url") is None and tag(html, "og:image") is None and not html.select("[rel=canonical]")
        assert not html.select(".source-repository-button, .dropdown-source-buttons"), path.name
        assert len(html.select("meta[name=viewport]")) == 1, path.name
        assert tag(html, "og:title")
        said = tag(html, "description")
        assert path.name == "search.html" or 20 < len(said) <= 160, f"{path.name}: {said}"
        assert not re.search(r"[{}`$\\]", said or ""), f"{path.name}: {said}"


@pytest.mark.browser
@pytest.mark.parametrize("lost", ["nothing.html", "book/reference/nothing/at/all", "notebooks/x.html"])
def test_the_page_for_wrong_addresses_leads_home_from_any_depth(book, tmp_path, lost):
    root = tmp_path / "site" / "somewhere"
    root.mkdir(parents=True)
    shutil.copy(book / "404.html", root)
    with browser.chromium() as started:
        tab = Tab(started)
        tab.page.route("**/*", lambda route: route.fulfill(path=root / "404.html", content_type="text/html"))
        tab.page.goto(f"http://127.0.0.1:9/somewhere/{lost}")
        links = tab.evaluate("[...document.querySelectorAll('a')].map((link) => new URL(link.href).pathname)")
        assert links == ["/somewhere/index.html", "/somewhere/search.html"]
