"""The pages that a build has written, for what changes them at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def pages(app: Any, exception: Exception | None) -> list[Path]:
    """All pages of the book as HTML; none if the build has failed or is of another kind."""
    if exception or app.builder.name != "html":
        return []
    return [page for page in Path(app.outdir).rglob("*.html") if "_static" not in page.parts]
