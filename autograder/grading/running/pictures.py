"""A picture of what the ranks sent each other when a check failed."""

from __future__ import annotations

import base64
import io
from typing import Any

from autograder.grading import limits
from autograder.grading.limits import well_formed


def picture_of(error: Exception | None) -> dict[str, str]:
    """What the ranks sent each other when a check failed: `png` (base64) and `alt`; {} if there is nothing to show."""
    ledger = getattr(error, "ledger", None)
    if not ledger or ledger.world_size < 2 or not _can_be_drawn(ledger):
        return {}
    from ranks import timeline

    try:
        sends = ledger.sends()
        if sends:
            figure = timeline.draw_rounds(ledger, ledger.world_size, "What your ranks sent")
        else:
            figure = timeline.draw(ledger, ledger.world_size, "What your ranks did")
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=120)
    except Exception:  # a ledger that no honest run writes can raise anything
        return {}
    return {"png": base64.b64encode(png.getvalue()).decode("ascii"), "alt": well_formed(figure.alt)[: limits.ALT]}


def _can_be_drawn(ledger: Any) -> bool:
    """Few enough messages and spans to be read in a picture, which also bounds the time that drawing takes?"""
    few = len(ledger) <= limits.PICTURE_MESSAGES and len(ledger.spans) <= limits.PICTURE_SPANS
    return few and all(len(span.name) <= limits.SPAN_NAME for span in ledger.spans)
