"""Numbers theorems, lemmas and corollaries by chapter: Theorem 5.1, Lemma 5.2, … in the order of the page.

sphinx-proof counts through the whole book. `prf_realtyp_to_countertyp` in `_config.yml` gives all kinds one counter;
here it begins anew in each chapter, after the chapter's own number.
"""

from __future__ import annotations

import re
from typing import Any


def renumber(app: Any, env: Any) -> list[str]:
    """Give each chapter's theorems the chapter's number and their place in it. No page has to be read again."""
    for docname, kinds in env.toc_fignumbers.items():
        chapter = re.fullmatch(r"book/(\d\d)_\w+", docname)
        numbers = kinds.get("theorem", {})
        if chapter:
            for place, name in enumerate(sorted(numbers, key=numbers.get), 1):
                numbers[name] = (int(chapter[1]), place)
    return []


def setup(app: Any) -> dict[str, Any]:
    """Renumber after Sphinx has counted, which it does at the same event."""
    app.connect("env-get-updated", renumber, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
