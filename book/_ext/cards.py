"""Puts onto each page what its links lead to, so that `cards.js` can show it while a reader points at a link.

A link to a source gets its entry in the bibliography, one to a theorem, lemma or definition its statement, one to an
equation the formula, and one to the glossary the meaning. Each is a `template` at the end of the page, which nothing
shows until the script does: a page that is opened from disk can fetch nothing. The pages of reference, where a
statement stands next to its link, get none.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from written import pages

LINK = re.compile(r'<a class="(?:reference internal|mathjax-equation)[^>]*? href="([^"]*)#([^"]+)"')
#: What a card may show: the classes of its element.
SHOWN = re.compile(r"citation$|math\b|proof (?!admonition)")
#: What would stand twice on the page, or makes no sense away from its place.
LEFT_OUT = re.compile(
    r' id="[^"]*"|<a class="headerlink".*?</a>|<span class="eqno">.*?</span>'
    r'|<span class="(?:label|backrefs)">.*?</span>(?=\n<p>)',
    re.DOTALL,
)
ADDRESS = re.compile(r' (href|src)="(?![a-z]+:)([^"#]*)(#[^"]*)?"')


def element(html: str, anchor: str) -> str:
    """What a card shows of the element with this id, as HTML; '' if it is none of which there are cards."""
    start = re.search(rf'<(div|dt)(?: class="([^"]*)")? id="{re.escape(anchor)}"[^>]*>', html)
    if start is None:
        return ""
    if start[1] == "dt":
        end = re.compile(r"</dl>|<dt\b").search(html, start.end())
        return html[start.start() : end.start()] if end and anchor.startswith("term-") else ""
    return _inside(html, start.end()) if SHOWN.match(start[2] or "") else ""


def _inside(html: str, begin: int) -> str:
    """From here to the end of the `div` that is open here."""
    depth = 1
    for tag in re.finditer(r"<(/?)div\b", html[begin:]):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return html[begin : begin + tag.start()]
    return ""


def moved(html: str, source: Path, page: Path) -> str:
    """HTML of one page, as it stands on another one: without ids, with the addresses that are right there."""

    def address(found: re.Match[str]) -> str:
        path = os.path.relpath(source.parent / found[2], page.parent) if found[2] else source.name
        if not found[2] and source != page:
            path = os.path.relpath(source, page.parent)
        return f' {found[1]}="{"" if not found[2] and source == page else path}{found[3] or ""}"'

    return ADDRESS.sub(address, LEFT_OUT.sub("", html)).strip()


def cards(page: Path, texts: dict[Path, str]) -> list[str]:
    """The templates for the links of a page."""
    found: dict[str, str] = {}
    for href, anchor in LINK.findall(texts[page]):
        target = Path(os.path.normpath(page.parent / unquote(href))) if href else page
        link = f"{href}#{anchor}"
        if link not in found and target in texts:
            found[link] = moved(element(texts[target], unquote(anchor)), target, page)
    return [f'<template data-card="{link}">{shown}</template>\n' for link, shown in found.items() if shown]


def write(app: Any, exception: Exception | None) -> None:
    """Write the templates into the pages."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages(app, exception)}
    for page in texts:
        made = [] if page.parent.name == "reference" else cards(page, texts)
        if made:
            page.write_text(texts[page].replace("</body>", "".join(made) + "</body>"), encoding="utf-8")


def setup(app: Any) -> dict[str, Any]:
    """Write at the end of the build."""
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
