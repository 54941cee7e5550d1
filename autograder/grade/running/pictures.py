"""A picture of what the ranks sent each other when a check failed."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

from autograder.checks.expect import HANG, WRONG, CheckFailed
from autograder.grade import limits
from autograder.grade.limits import well_formed


def picture_of(error: Exception | None) -> dict[str, str]:
    """What the ranks sent each other when a check failed: `png` (base64) and `alt`; {} if that explains nothing."""
    if not isinstance(error, CheckFailed) or not is_about_messages(error.failure.kind, error.failure.message):
        return {}
    ledger = error.ledger
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


#: Words of a sentence on what ranks send or wait for, and of one on numbers that are not those expected.
MESSAGES = re.compile(
    r"\b(sends?|sent|messages?|receives?d?|waits?|waited|collectives?|barriers?|broadcasts?"
    r"|puts? \S+ (bytes|numbers) into|all[-_](reduces?|gathers?|to[-_]all)|reduce[-_]scatters?)\b"
)
NUMBERS = re.compile(r"\bis wrong\b")
#: Words of a sentence on an error that is missing, or on memory, which no message explains.
OTHERWISE = re.compile(r"\b\w*Error should\b|\b(expected|no|should) (an? )?\w*Error\b|\bmemory\b")


def is_about_messages(kind: str, message: str) -> bool:
    """Do the messages of its ranks explain a failure: do ranks wait for each other, or are messages or numbers wrong?

    Numbers that ranks compute together depend on what they sent. An error that is raised or missing, a view, a type or
    a name does not. What a failure is about, the sentence says that the student reads.
    """
    if kind != WRONG:
        return kind == HANG
    return not OTHERWISE.search(message) and bool(MESSAGES.search(message) or NUMBERS.search(message))


def _can_be_drawn(ledger: Any) -> bool:
    """Few enough messages and spans to be read in a picture, which also bounds the time that drawing takes?"""
    few = len(ledger) <= limits.PICTURE_MESSAGES and len(ledger.spans) <= limits.PICTURE_SPANS
    return few and all(len(span.name) <= limits.SPAN_NAME for span in ledger.spans)
