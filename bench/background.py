"""Measure how much GETs once a second slow down calls: a scrape and a probe, or a member's pages.

`python -m bench.background [--store FILE]` alternates between calls with and without the GETs.
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.calls import STATE_OF_ONE, USAGE, Case
from bench.load import measure_load
from bench.served import Service, copy_store, free_port, run_module, serve_store
from bench.table import Row, compare_rates
from bench.workers import measure_cpu_s
from store.sqlite.access_store import open_sqlite_access
from tools.member_sessions import create_session_cookie

CALLS = (USAGE, STATE_OF_ONE)
TURNS, SECONDS = 5, 3.0
EVERY_S = 1.0
REPEATS = 100
TARGET = 0.95
# A person reads a page for longer than a second, so this is the load of a dozen people.
PAGES = ("/", "/feed", "/flips", "/confluence", "/assets", "/assets/BTC")


@dataclass(frozen=True, slots=True)
class BackgroundGets:
    """Paths on the main port and on the operations port that are fetched once a second."""

    name: str
    paths: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()

    def list_addresses(self, url: str, operations_url: str) -> list[str]:
        ours = [url + path for path in self.paths]
        return ours + [operations_url + path for path in self.operations]


CASES = (
    BackgroundGets("a scrape and /readyz", operations=("/metrics", "/readyz")),
    BackgroundGets(f"a member's {len(PAGES)} pages", PAGES),
)


@contextmanager
def poll_in_background(addresses: list[str], cookie: str) -> Iterator[None]:
    """Fetch each address once a second during the block, as a member.

    SystemExit if a request fails.
    """
    ended, failures = threading.Event(), list[Exception]()

    def poll() -> None:
        with httpx.Client(timeout=10, headers={"cookie": cookie}) as client:
            while True:
                for address in addresses:
                    client.get(address).raise_for_status()
                if ended.wait(EVERY_S):
                    return

    def run() -> None:
        try:
            poll()
        except httpx.HTTPError as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise SystemExit(f"a background request failed: {failures[0]}")


def measure_rate(ours: Service, case: Case) -> float:
    load = measure_load(ours.url, case.build_mcp_call(ours), SECONDS)
    if load.failed:
        raise SystemExit(f"{case.name}: {load.failed} failed")
    return load.calls_s


def compare_turns(
    ours: Service, case: Case, gets: BackgroundGets, operations_url: str, cookie: str
) -> Row:
    """Measure pairs with and without the GETs, and return the pair with the median ratio."""
    # The best round of each would compare different moments. Which of the two goes first
    # alternates, so that a machine that speeds up or slows down favours neither.
    addresses = gets.list_addresses(ours.url, operations_url)
    pairs = list[tuple[float, float]]()
    for turn in range(TURNS):
        rates = dict[bool, float]()
        for has_gets in (turn % 2 == 0, turn % 2 == 1):
            with poll_in_background(addresses if has_gets else [], cookie):
                rates[has_gets] = measure_rate(ours, case)
        pairs.append((rates[True], rates[False]))
    what = f"MCP {case.name}, with {gets.name} each second / without"
    polled_rate, quiet_rate = pick_median_pair(pairs)
    return compare_rates(what, polled_rate, quiet_rate, TARGET)


def measure_cost(ours: Service, gets: BackgroundGets, operations_url: str, cookie: str) -> Row:
    """Return the CPU time that the service needs for one round of the GETs."""
    # Rates waver by more than the target on a busy machine, while CPU time does not.
    before = measure_cpu_s(ours)
    with httpx.Client(timeout=10, headers={"cookie": cookie}) as client:
        for _ in range(REPEATS):
            for address in gets.list_addresses(ours.url, operations_url):
                client.get(address).raise_for_status()
    took_ms = (measure_cpu_s(ours) - before) * 1000 / REPEATS
    max_ms = (1 - TARGET) * EVERY_S * 1000
    what = f"CPU of the service for {gets.name}"
    return Row(what, f"{took_ms:.1f} ms", "", "", f"< {max_ms:.0f} ms", took_ms < max_ms)


def pick_median_pair(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the pair with the median ratio."""
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]


def rows(store: Path | None = None) -> list[Row]:
    """Measure on a copy of the store, or on a new store if none is given."""
    port = free_port()
    with copy_store(store) as copy, serve_store(copy, operations_port=port) as ours:
        url = f"http://127.0.0.1:{port}"
        cookie = asyncio.run(sign_in_member(copy))
        costs = [measure_cost(ours, gets, url, cookie) for gets in CASES]
        return costs + [
            compare_turns(ours, case, gets, url, cookie) for gets in CASES for case in CALLS
        ]


async def sign_in_member(store: Path) -> str:
    """Return the session cookie of a new member."""
    access = await open_sqlite_access(store.with_name(f"{store.name}-access"))
    try:
        return await create_session_cookie(access, lambda: time.time_ns() // 1_000_000)
    finally:
        await access.close()


def main() -> None:
    run_module(rows, __doc__)


if __name__ == "__main__":
    main()
