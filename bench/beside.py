"""What GETs once a second take from the calls beside them: a scrape and a probe of readiness.

`python -m bench.beside [--store FILE]` calls with and without them by turns. Pages go into `CASES`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from bench.calls import STATE_OF_ONE, USAGE, Case
from bench.load import drive
from bench.served import Ours, copied, free_port, run_alone, serving
from bench.table import Row, compared

CALLS = (USAGE, STATE_OF_ONE)
TURNS, SECONDS = 7, 3.0
EVERY_S = 1.0
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


CASES = (Gets("a scrape and /readyz", operations=("/metrics", "/readyz")),)


@contextmanager
def asked(addresses: list[str]) -> Iterator[None]:
    """Ask for each once a second beside the block; a refusal ends the bench."""
    ended, failures = threading.Event(), list[Exception]()

    def ask() -> None:
        with httpx.Client(timeout=10) as client:
            while not ended.wait(EVERY_S):
                for address in addresses:
                    client.get(address).raise_for_status()

    def asking() -> None:
        try:
            ask()
        except httpx.HTTPError as failure:
            failures.append(failure)

    thread = threading.Thread(target=asking)
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


def measured(ours: Ours, case: Case, gets: Gets, operations_url: str) -> Row:
    """Compare the medians of turns: what comes once a second is in no best round."""
    alone, beside = list[float](), list[float]()
    for _ in range(TURNS):
        alone.append(calls_s(ours, case))
        with asked(gets.addresses(ours.url, operations_url)):
            beside.append(calls_s(ours, case))
    what = f"MCP {case.name}, beside {gets.name} each second / alone"
    return compared(what, median(beside), median(alone), TARGET)


def rows(store: Path | None = None) -> list[Row]:
    """Measure; on a copy of a store where there is one."""
    port = free_port()
    with copied(store) as own, serving(own, operations_port=port) as ours:
        url = f"http://127.0.0.1:{port}"
        return [measured(ours, case, gets, url) for gets in CASES for case in CALLS]


def main() -> None:
    run_alone(rows, __doc__)


if __name__ == "__main__":
    main()
