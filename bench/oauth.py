"""Measure what an OAuth token costs more than an API key: the same calls at `/mcp` and with a key.

`python -m bench.oauth [--store FILE]` alternates between calls with a key and with a token.
"""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from access.keys import generate_key, hash_key
from access.oauth.tokens import create_tokens
from bench.background import pick_median_pair
from bench.calls import STATE_OF_ONE, USAGE, Case
from bench.load import Call, measure_load
from bench.served import Service, copy_store, run_module, serve_store
from bench.table import Row, compare_rates
from schemas.vocabulary import HOUR_MS
from store.access_rows import KeyLimits
from store.oauth_rows import ApprovedAuthorization, PendingAuthorization
from store.sqlite.access_store import open_sqlite_access

TURNS, SECONDS = 9, 2.0
MIN_RATIO = 0.95


def rows(store: Path | None = None) -> list[Row]:
    """Measure on a copy of the store, or on a new store if none is given."""
    with copy_store(store) as copy, serve_store(copy) as ours:
        token = asyncio.run(connect(copy, f"{ours.url}/mcp"))
        return [compare_turns(ours, case, token) for case in (USAGE, STATE_OF_ONE)]


def compare_turns(ours: Service, case: Case, token: str) -> Row:
    """Measure pairs with a token and with a key, and return the pair with the median ratio."""
    with_key = case.build_mcp_call(ours)
    headers = {**with_key.headers, "Authorization": f"Bearer {token}"}
    with_token = replace(with_key, path="/mcp", headers=headers)
    pairs = list[tuple[float, float]]()
    for turn in range(TURNS):
        # Which of the two goes first alternates, as in `background`.
        calls = (with_token, with_key) if turn % 2 else (with_key, with_token)
        rates = {call.path: measure_rate(ours, case, call) for call in calls}
        pairs.append((rates[with_token.path], rates[with_key.path]))
    what = f"MCP {case.name}, with an OAuth token / with a key"
    return compare_rates(what, *pick_median_pair(pairs), MIN_RATIO)


def measure_rate(ours: Service, case: Case, call: Call) -> float:
    load = measure_load(ours.url, call, SECONDS)
    if load.failed:
        raise SystemExit(f"{case.name} at {call.path}: {load.failed} failed")
    return load.calls_s


async def connect(store: Path, resource: str) -> str:
    """Store a connection of the operator and return its access token."""
    access, now = (
        await open_sqlite_access(store.with_name(f"{store.name}-access")),
        time.time_ns() // 1_000_000,
    )
    try:
        request = PendingAuthorization("", "bench", "bench", "", None, resource, "", now)
        await access.oauth.add_request(request, bytes(32), now - HOUR_MS)
        await access.oauth.approve_request(bytes(32), bytes(32), now, None, now - HOUR_MS)
        approved = ApprovedAuthorization("bench", "bench", "", resource, "", now, None)
        tokens, stored = create_tokens("rt_bench", now)
        key_hash = hash_key(generate_key())
        limits = KeyLimits(1, 1, now)
        await access.oauth.redeem_code(
            bytes(32), approved, key_hash, bytes(32), stored, now, limits
        )
        return tokens.access_token
    finally:
        await access.close()


def main() -> None:
    run_module(rows, __doc__)


if __name__ == "__main__":
    main()
