"""Measure past boards: the processor time of a state with `as_of` at random instants of the year.

`python -m bench.past [--store FILE]`. The service reads the past into memory when it is first
requested, and the store answers until then; both are measured.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench.served import Service, copy_store, create_key, run_module, serve_store
from bench.start import MEMORY_MIB, read_resident_mib
from bench.table import Row
from bench.workers import measure_cpu_s
from schemas.vocabulary import DAY_MS, format_instant

# Each key has a burst of 20 past boards.
KEYS, CALLS_PER_KEY = 5, 20
# A first start publishes the last 30 days of the history that it computes.
DAYS = 29
TARGET_MS = 5.0
QUERIES = {"state": {}, "state of one": {"ticker": "BTC"}, "confluence": {}}
IDLE_S, MAX_LOADING_S = 0.5, 120.0


def rows(store: Path | None = None) -> list[Row]:
    """Measure on a copy of the store, or on a new store if none is given."""
    with copy_store(store) as copy, serve_store(copy) as ours:
        return list(_measure(ours, copy))


def _measure(ours: Service, store: Path) -> Iterator[Row]:
    with httpx.Client(base_url=ours.url, timeout=60) as client:
        began, before = time.perf_counter(), read_resident_mib(ours.pid)
        from_store_ms = _call_often(ours, client, ours.api_key, "state", {}, 1)
        cpu_s = _wait_until_idle(ours)
        took_s = time.perf_counter() - began
        for name, query in QUERIES.items():
            spent = [
                _call_often(ours, client, create_key(store), name.split()[0], query, CALLS_PER_KEY)
                for _ in range(KEYS)
            ]
            mean_ms = sum(spent) / len(spent)
            yield Row(
                f"CPU of a past {name}, at random instants",
                f"{mean_ms:.1f} ms",
                target=f"< {TARGET_MS:.0f} ms",
                is_met=mean_ms < TARGET_MS,
            )
        yield Row("the first past state, while the past is read", f"{from_store_ms:.0f} ms")
        yield Row(
            "reading the past of a year: CPU, until it is done", f"{cpu_s:.1f} s, {took_s:.0f} s"
        )
        memory = read_resident_mib(ours.pid)
        yield Row(
            "resident memory with the past, without",
            f"{memory:.0f} MiB, {before:.0f} MiB",
            target=f"< {MEMORY_MIB} MiB",
            is_met=memory < MEMORY_MIB,
        )


def _call_often(
    ours: Service, client: httpx.Client, key: str, path: str, query: dict[str, str], calls: int
) -> float:
    """Return the processor time of a call, in ms, with another random instant in each."""
    headers = {"authorization": f"Bearer {key}", "accept-encoding": "identity"}
    before = measure_cpu_s(ours)
    for _ in range(calls):
        at = ours.served_at_ms - random.randrange(DAY_MS, DAYS * DAY_MS)
        asked = {**query, "as_of": format_instant(at)}
        client.get(f"/api/v1/{path}", params=asked, headers=headers).raise_for_status()
    return (measure_cpu_s(ours) - before) * 1000 / calls


def _wait_until_idle(ours: Service) -> float:
    """Wait until the service has read the past; return the processor time that it took."""
    first = last = measure_cpu_s(ours)
    give_up = time.monotonic() + MAX_LOADING_S
    while time.monotonic() < give_up:
        time.sleep(IDLE_S)
        now = measure_cpu_s(ours)
        if now - last < IDLE_S / 20:
            return now - first
        last = now
    raise SystemExit("the service was never idle")


def main() -> None:
    run_module(rows, __doc__)


if __name__ == "__main__":
    main()
