"""A ledger as plain data for a page that plays it: the book shows a run step by step from what its picture carries.

The data is small on purpose. A run with more than `MOST` calls and spans has none.
"""

from __future__ import annotations

import json
from typing import Any

from ranks.ledger import Ledger, Message, pairs

#: With more calls than this, a picture would carry more data than pixels, and nobody steps through so many.
MOST = 400


def to_json(ledger: Ledger, world_size: int, stuck: str = "") -> str:
    """The ledger as JSON, or "" if it is empty or too long.

    ranks: how many. calls: a list [rank, call, peer or null, bytes, begin, end or null, partner or null] for each call.
    spans: a list [rank, name, begin, end or null] for each marked stretch. Times are in microseconds since the run's
    first event. partner: for a send the index of its receive in `calls`, for a receive that of its send. stuck: why the
    run never ended, or "".
    """
    if not ledger or len(ledger) + len(ledger.spans) > MOST:
        return ""
    index = {id(message): k for k, message in enumerate(ledger)}
    partner: dict[int, int] = {}
    for send, receive in pairs(ledger):
        partner[index[id(send)]], partner[index[id(receive)]] = index[id(receive)], index[id(send)]
    calls = [_call(message, partner.get(k)) for k, message in enumerate(ledger)]
    spans = [[span.rank, span.name, _micro(span.start), _micro(span.end)] for span in ledger.spans]
    data = {"ranks": world_size, "calls": calls, "spans": spans, "stuck": stuck}
    return json.dumps(data, separators=(",", ":"))


def _call(m: Message, partner: int | None) -> list[Any]:
    return [m.rank, m.call, m.peer, m.bytes, _micro(m.start), _micro(m.until), partner]


def _micro(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)
