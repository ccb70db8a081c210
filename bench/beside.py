"""What GETs once a second take from the calls beside them: a scrape and a probe, a member's pages.

`python -m bench.beside [--store FILE]` calls with and without them by turns.
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
from bench.load import drive
from bench.served import Ours, copied, free_port, run_alone, serving
from bench.table import Row, compared
from bench.workers import cpu_s
from store.sqlite.access_store import SqliteAccessStore
from tests.signing_in import session_cookie

CALLS = (USAGE, STATE_OF_ONE)
TURNS, SECONDS = 5, 3.0
EVERY_S = 1.0
REPEATS = 100
TARGET = 0.95


@dataclass(frozen=True, slots=True)
class Gets:
    """Paths of the main port and of the operations port that are asked for once a second."""

    name: str
    paths: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()

    def addresses(self, url: str, operations_url: str) -> list[str]:
        ours = [url + path for path in self.paths]
        return ours + [operations_url + path for path in self.operations]


CASES = (
    Gets("a scrape and /readyz", operations=("/metrics", "/readyz")),
    Gets("a member's board and an asset", ("/", "/assets/BTC")),
)


@contextmanager
def asking_for(addresses: list[str], cookie: str) -> Iterator[None]:
    """Ask for each once a second beside the block, as a member; a refusal ends the bench."""
    ended, failures = threading.Event(), list[Exception]()

    def ask() -> None:
        with httpx.Client(timeout=10, headers={"cookie": cookie}) as client:
            while True:
                for address in addresses:
                    client.get(address).raise_for_status()
                if ended.wait(EVERY_S):
                    return

    def tried() -> None:
        try:
            ask()
        except httpx.HTTPError as failure:
            failures.append(failure)

    thread = threading.Thread(target=tried)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise SystemExit(f"beside the calls: {failures[0]}")


def calls_s(ours: Ours, case: Case) -> float:
    load = drive(ours.url, case.over_mcp(ours), SECONDS)
    if load.failed:
        raise SystemExit(f"{case.name}: {load.failed} failed")
    return load.calls_s


def measured(ours: Ours, case: Case, gets: Gets, operations_url: str, cookie: str) -> Row:
    """Compare neighbouring turns, each first as often as the other, and tell the median pair."""
    addresses = gets.addresses(ours.url, operations_url)
    pairs = list[tuple[float, float]]()
    for turn in range(TURNS):
        rates = dict[bool, float]()
        for is_beside in (turn % 2 == 0, turn % 2 == 1):
            with asking_for(addresses if is_beside else [], cookie):
                rates[is_beside] = calls_s(ours, case)
        pairs.append((rates[True], rates[False]))
    what = f"MCP {case.name}, beside {gets.name} each second / alone"
    beside, alone = median_pair(pairs)
    return compared(what, beside, alone, TARGET)


def cost(ours: Ours, gets: Gets, operations_url: str, cookie: str) -> Row:
    """Tell the CPU that the service takes for all of them once; no other load disturbs that."""
    before = cpu_s(ours)
    with httpx.Client(timeout=10, headers={"cookie": cookie}) as client:
        for _ in range(REPEATS):
            for address in gets.addresses(ours.url, operations_url):
                client.get(address).raise_for_status()
    took_ms = (cpu_s(ours) - before) * 1000 / REPEATS
    most_ms = (1 - TARGET) * EVERY_S * 1000
    what = f"CPU of the service for {gets.name}"
    return Row(what, f"{took_ms:.1f} ms", "", "", f"< {most_ms:.0f} ms", took_ms < most_ms)


def median_pair(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the pair whose ratio is the median one."""
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]


def rows(store: Path | None = None) -> list[Row]:
    """Measure; on a copy of a store where there is one."""
    port = free_port()
    with copied(store) as own, serving(own, operations_port=port) as ours:
        url = f"http://127.0.0.1:{port}"
        cookie = asyncio.run(member_of(own))
        costs = [cost(ours, gets, url, cookie) for gets in CASES]
        return costs + [measured(ours, case, gets, url, cookie) for gets in CASES for case in CALLS]


async def member_of(store: Path) -> str:
    """Return the cookie of a member who has signed in."""
    access = await SqliteAccessStore.open(store.with_name(f"{store.name}-access"))
    try:
        return await session_cookie(access, lambda: time.time_ns() // 1_000_000)
    finally:
        await access.close()


def main() -> None:
    run_alone(rows, __doc__)


if __name__ == "__main__":
    main()
