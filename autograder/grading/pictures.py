"""A picture of what the ranks sent each other when a check failed."""

from __future__ import annotations

import base64
import io

#: A picture of more messages than this cannot be read.
MAX_MESSAGES = 150


def picture_of(error: Exception | None) -> dict[str, str]:
    """What the ranks sent each other when a check failed: `png` (base64) and `alt`; {} if there is nothing to show."""
    ledger = getattr(error, "ledger", None)
    if not ledger or len(ledger) > MAX_MESSAGES or ledger.world_size < 2:
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
    return {"png": base64.b64encode(png.getvalue()).decode("ascii"), "alt": figure.alt}
