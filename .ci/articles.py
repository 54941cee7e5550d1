"""The articles of the built book, as `pdf.py` prints them: without what only a screen or a script can use.

All pages but the home page and the assignments, which are notebooks, are taken, in the order of `_toc.yml`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path

import yaml
from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parent.parent
DROPPED = "script, .headerlink, .copybtn, .ledger-player, .py-exercise .py-buttons, .assignment-offer"

#: (page, anchor or "") → where a link leads; pages are named as in `_toc.yml`.
Target = Callable[[str, str], str]


def contents() -> list[tuple[str, list[str]]]:
    """(caption of the part, its pages without the assignments), in order."""
    toc, found = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")), []
    for part in toc["parts"]:
        files = [entry for chapter in part["chapters"] for entry in (chapter, *chapter.get("sections", []))]
        found.append((part["caption"], [e["file"] for e in files if not e["file"].startswith("notebooks/")]))
    return found


def title(html: Path) -> str:
    """The book's title: that of its home page."""
    home = BeautifulSoup((html / "book" / "index.html").read_text(encoding="utf-8"), "html.parser")
    return str(home.select_one("article h1").find(string=True))


def heading(page: str, article: Tag) -> str:
    """A page's title as text, with the lesson's number before it."""
    number = posixpath.basename(page)[:2]
    return f"{number} · {article.h1.get_text()}" if number.isdigit() else article.h1.get_text()


def articles(html: Path, target: Target, named: Callable[[str, str], str]) -> dict[str, Tag]:
    """Each page's article, cleaned. Everything folded is open, pictures have the addresses of their files.

    target: where a link to another page, or to a place on it, leads. A link to a file that is no page is text.
    named: (page, anchor) → the name of that place.
    """
    pages = [page for _, files in contents() for page in files]
    return {page: _article(html, page, pages, target, named) for page in pages}


def _article(html: Path, page: str, pages: list[str], target: Target, named: Callable[[str, str], str]) -> Tag:
    text = (html / f"{page}.html").read_text(encoding="utf-8")
    found = BeautifulSoup(text, "html.parser").select_one("article")
    folder, seen = posixpath.dirname(page), set()
    for tag in found.select(DROPPED):
        tag.decompose()
    for tag in found.find_all(lambda tag: tag.name.startswith("figure-") or tag.name == "plan-a-run"):
        tag.decompose()
    for tag in found.select("[id]"):  # sphinx-proof calls every proof `proof`
        if tag["id"] in seen:
            del tag["id"]
        else:
            seen.add(tag["id"])
            tag["id"] = named(page, tag["id"])
    for tag in found.select("[aria-labelledby]"):
        tag["aria-labelledby"] = named(page, tag["aria-labelledby"])
    for tag in found.select("details.hide"):  # "Show code cell source": it is shown
        tag.summary.decompose()
        tag.name = "div"
    for tag in found.select("details"):
        tag["open"] = "open"
    for tag in found.select("img[src]"):
        if not tag["src"].startswith("data:"):
            tag["src"] = (html / posixpath.normpath(posixpath.join(folder, tag["src"]))).as_uri()
    for link in found.select("a[href]"):
        href = _where(link["href"], page, folder, pages, target)
        if href:
            link["href"] = href
        else:
            link.unwrap()
    return found


def _where(href: str, page: str, folder: str, pages: list[str], target: Target) -> str:
    if "://" in href or href.startswith("mailto:"):
        return href
    file, _, anchor = href.partition("#")
    where = posixpath.normpath(posixpath.join(folder, file)).removesuffix(".html") if file else page
    place = "" if "=" in anchor else anchor  # settings of a page are no place on it
    return target(where, place) if where in pages else ""
