"""Mends what the theme and sphinxcontrib-bibtex leave unclear to a screen reader, in the pages that are written.

The triangles of the sidebar get names, buttons are called what they show, and the bibliography is no list by role,
since its entries are no list items.
"""

from __future__ import annotations

import html
import re
from typing import Any

from written import pages

TOGGLE = re.compile(r'(<a [^>]*>)([^<]+)(</a>\s*<details[^>]*>\s*)<summary>(?=<span class="toctree-toggle")')
CHANGES = (
    (TOGGLE, lambda found: f'{found[1]}{found[2]}{found[3]}<summary aria-label="{_label(found[2])}">'),
    (re.compile(r' role="list" class="citation-list"'), lambda found: ' class="citation-list"'),
    (re.compile(r' role="doc-biblioentry"'), lambda found: ""),
    (re.compile(r'(<button class="btn search-button-field[^>]*?) aria-label="Search"'), lambda found: found[1]),
    (re.compile(r'aria-label="Color mode"'), lambda found: 'aria-label="Color mode: Light, Dark, System Settings"'),
    (re.compile(r'(<summary) aria-label="Toggle hidden content"'), lambda found: found[1]),
)


def _label(title: str) -> str:
    return html.escape(f"Pages of {html.unescape(title).strip()}")


def mend(app: Any, exception: Exception | None) -> None:
    """Change the pages."""
    for page in pages(app, exception):
        old = new = page.read_text(encoding="utf-8")
        for pattern, change in CHANGES:
            new = pattern.sub(change, new)
        if new != old:
            page.write_text(new, encoding="utf-8")


def setup(app: Any) -> dict[str, Any]:
    """Mend at the end of the build."""
    app.connect("build-finished", mend)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
