"""How many polls a second does the service answer, if each client has a cursor of its own?"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime

from bench.calls import REST_PATH, SIGNALS, fetch
from bench.endpoint import compare_with_fixed, start_fixed
from bench.load import Call
from bench.served import copy_store, create_key, serve_store
from bench.table import Row
from schemas.vocabulary import DAY_MS

# Of the 30 days of feed. Pages that begin on the last day may not be full.
FIRST_DAY, LAST_DAY = 30, 1


def rows() -> Iterator[Row]:
    with copy_store() as file, serve_store(file) as ours, ExitStack() as stack:
        key, fixed, now_ms = create_key(file), start_fixed(stack), time.time_ns() // 1_000_000
        newest = json.loads(fetch(ours.url, Call(f"{REST_PATH}/signals?limit=1", "", key)))
        cursor = newest["pagination"]["next_cursor"]
        cursor_ms = round(datetime.fromisoformat(cursor).timestamp() * 1000)
        days = (now_ms - FIRST_DAY * DAY_MS, now_ms - LAST_DAY * DAY_MS)
        varied = SIGNALS._replace(name="poll of 50 rows", since=days)
        nothing_new = SIGNALS._replace(
            name="poll, nothing new", limit_ratio=0.6, since=(cursor_ms, cursor_ms)
        )
        for case in (varied, nothing_new):
            for transport in ("MCP", "REST"):
                yield from compare_with_fixed(case, transport, key, ours.url, fixed)
