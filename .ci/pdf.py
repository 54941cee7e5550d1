"""Print the built book as one PDF: `make pdf`.

    python .ci/pdf.py _build/html _build/book.pdf

All pages are put into one, and Chromium prints it: links lead to other places in the PDF, and its outline has all
headings. Figures that move are still pictures.
"""

from __future__ import annotations

import html as escaping
import posixpath
import sys
from pathlib import Path

import yaml
from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.helpers import browser  # noqa: E402

DROPPED = "script, .headerlink, .copybtn, .ledger-player, .py-exercise .py-buttons, .assignment-offer"
FOOTER = """<div style="width: 100%; text-align: center; font: 8pt sans-serif; color: #555">
  <span class="pageNumber"></span></div>"""
MARGIN = {"top": "18mm", "bottom": "20mm", "left": "18mm", "right": "18mm"}
OWN = "article { break-before: page; } .pdf-title { font-size: 2.6rem; margin: 30vh 0 50vh; }"


def joined(html: Path) -> str:
    """One page that holds a title page, the contents, and all articles."""
    found = articles(html)
    for page, article in found.items():
        article["id"] = page
    name = escaping.escape(title(html))
    links = "".join(f'<link rel="stylesheet" href="{sheet.as_uri()}">' for sheet in _sheets(html))
    return (
        f'<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8"><title>{name}</title>{links}'
        f'<style>{OWN}</style><body><main class="bd-main"><div class="bd-content"><div class="bd-article-container">'
        f'<p class="pdf-title">{name}</p>{_listed(found)}{"".join(map(str, found.values()))}'
        "</div></div></main></body></html>"
    )


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


def articles(html: Path) -> dict[str, Tag]:
    """Each page's article, without what only a screen or a script can use, in the order of `_toc.yml`.

    All pages but the home page and the assignments, which are notebooks, are taken. Everything folded is open, pictures
    have the addresses of their files, and a link to a file that is no page is text.
    """
    pages = [page for _, files in contents() for page in files]
    return {page: _article(html, page, pages) for page in pages}


def _article(html: Path, page: str, pages: list[str]) -> Tag:
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
            tag["id"] = _name(page, tag["id"])
    for tag in found.select("[aria-labelledby]"):
        tag["aria-labelledby"] = _name(page, tag["aria-labelledby"])
    for tag in found.select("details.hide"):  # "Show code cell source": it is shown
        tag.summary.decompose()
        tag.name = "div"
    for tag in found.select("details"):
        tag["open"] = "open"
    for tag in found.select("img[src]"):
        if not tag["src"].startswith("data:"):
            tag["src"] = (html / posixpath.normpath(posixpath.join(folder, tag["src"]))).as_uri()
    for link in found.select("a[href]"):
        href = _where(link["href"], page, folder, pages)
        if href:
            link["href"] = href
        else:
            link.unwrap()
    return found


def _where(href: str, page: str, folder: str, pages: list[str]) -> str:
    if "://" in href or href.startswith("mailto:"):
        return href
    file, _, anchor = href.partition("#")
    where = posixpath.normpath(posixpath.join(folder, file)).removesuffix(".html") if file else page
    place = "" if "=" in anchor else anchor  # settings of a page are no place on it
    return f"#{_name(where, place)}" if where in pages else ""


def _name(page: str, anchor: str) -> str:
    return f"{page}--{anchor}" if anchor else page


def _sheets(html: Path) -> list[Path]:
    """The style sheets of the book, in the order in which a page loads them, and those of the figures."""
    home = BeautifulSoup((html / "book" / "index.html").read_text(encoding="utf-8"), "html.parser")
    names = [link["href"].split("?")[0] for link in home.select('link[rel~="stylesheet"]')]
    own = [html / posixpath.normpath(posixpath.join("book", name)) for name in names if "://" not in name]
    figures = sorted((html / "_static" / "figures").glob("*.css"))
    return list(dict.fromkeys([*own, *figures, html / "_static" / "math.css"]))


def _listed(found: dict[str, Tag]) -> str:
    """The contents, as links."""
    lines = []
    for caption, files in contents():
        headings = ((page, escaping.escape(heading(page, found[page]))) for page in files)
        items = "".join(f'<li><a href="#{page}">{heading}</a></li>' for page, heading in headings)
        lines.append(f"<p><strong>{caption}</strong></p><ul>{items}</ul>")
    return f'<div class="bd-article" style="break-before: page">{"".join(lines)}</div>'


def main(arguments: list[str]) -> int:
    """Write the PDF; the exit status."""
    html, pdf = (Path(argument).resolve() for argument in arguments)
    if browser.find() is None:
        print(f"make pdf: no browser: {browser.INSTALL}", file=sys.stderr)
        return 1
    source, new = pdf.with_suffix(".html"), pdf.with_suffix(".new")
    source.write_text(joined(html), encoding="utf-8")
    with browser.chromium() as started:
        page = started.new_page()
        page.goto(source.as_uri(), timeout=120_000)
        page.wait_for_function("document.fonts.status === 'loaded'")
        page.pdf(
            path=new, format="A4", margin=MARGIN, print_background=True, outline=True, tagged=True,
            display_header_footer=True, header_template="<span></span>", footer_template=FOOTER,
        )  # fmt: skip
    new.rename(pdf)
    source.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
