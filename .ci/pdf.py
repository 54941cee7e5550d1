"""Print the built book as one PDF: `make pdf`.

    python .ci/pdf.py _build/html _build/book.pdf

All pages are put into one (`articles.py`), and Chromium prints it: links lead to other places in the PDF, and its
outline has all headings. Figures that move are still pictures.
"""

from __future__ import annotations

import html as escaping
import posixpath
import sys
from pathlib import Path

import articles
from bs4 import BeautifulSoup, Tag

sys.path.insert(0, str(articles.ROOT))

from tests.helpers import browser

FOOTER = """<div style="width: 100%; text-align: center; font: 8pt sans-serif; color: #555">
  <span class="pageNumber"></span></div>"""
MARGIN = {"top": "18mm", "bottom": "20mm", "left": "18mm", "right": "18mm"}
OWN = "article { break-before: page; } .pdf-title { font-size: 2.6rem; margin: 30vh 0 50vh; }"


def joined(html: Path) -> str:
    """One page that holds a title page, the contents, and all articles."""
    found = articles.articles(html, lambda page, anchor: f"#{_name(page, anchor)}", _name)
    for page, article in found.items():
        article["id"] = page
    title = escaping.escape(articles.title(html))
    links = "".join(f'<link rel="stylesheet" href="{sheet.as_uri()}">' for sheet in _sheets(html))
    return (
        f'<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8"><title>{title}</title>{links}'
        f'<style>{OWN}</style><body><main class="bd-main"><div class="bd-content"><div class="bd-article-container">'
        f'<p class="pdf-title">{title}</p>{_listed(found)}{"".join(map(str, found.values()))}'
        "</div></div></main></body></html>"
    )


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
    for caption, files in articles.contents():
        headings = ((page, escaping.escape(articles.heading(page, found[page]))) for page in files)
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
