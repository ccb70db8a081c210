"""Measure what one greedy key costs another: its latency, quiet and under attack, and readiness.

`python -m bench.fairness [--store FILE]` serves on SQLite, on SQLite with two workers, and on
PostgreSQL if BENCH_POSTGRES_URL names an empty database. One key sends the most expensive calls on
1,500 connections as fast as they are answered, and ignores Retry-After. Another key polls and makes
a small call at a fixed rate.
"""

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np

from bench.calls import STATE_OF_ONE, Case
from bench.generator import Connection, encode_request
from bench.latency import format_percentiles
from bench.load import SINCE, Arrivals, Call, measure_arrivals
from bench.served import (
    TREE,
    Service,
    Store,
    copy_store,
    create_key,
    run_command,
    run_module,
    run_process,
    serve_store,
)
from bench.table import Row
from schemas.vocabulary import DAY_MS, format_instant

# Asks for few new rows, and never twice for the same, as a poll does.
POLL = Case(
    "poll", "signals_get_signals", f"/signals?since={SINCE}", 0.0, {"limit": 50, "since": SINCE}
)
CASES = (POLL, STATE_OF_ONE)
CONNECTIONS = 1_500
RATE, QUIET_S, ATTACK_S = 20.0, 10.0, 20.0
PROBE_EVERY_S, PROBE_TIMEOUT_S = 1.0, 10.0
MAX_RATIO, MAX_P99_MS = 5.0, 100.0
TIMEFRAMES, DIRECTIONS, CLASSES = ("1h", "4h", "1d"), ("bullish", "bearish"), ("crypto", "stock")
HISTORY_DAYS = 20
# The URL of an empty database.
POSTGRES_VARIABLE = "BENCH_POSTGRES_URL"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the other key and the probe saw: the arrivals of each case, and failed probes."""

    arrivals: tuple[Arrivals, ...]
    probes: int
    failed_probes: int


def build_attack_path(chance: random.Random, now_ms: int) -> str:
    """Return the path of one of the most expensive calls, hardly ever the same twice."""
    past = format_instant(now_ms - chance.randrange(DAY_MS, HISTORY_DAYS * DAY_MS))
    timeframe, direction = chance.choice(TIMEFRAMES), chance.choice(DIRECTIONS)
    paths = (
        f"/state?as_of={past}",
        f"/state?as_of={past}&timeframe={timeframe}&asset_class={chance.choice(CLASSES)}",
        f"/confluence?as_of={past}&timeframe={timeframe}&direction={direction}&min_agree=1",
        "/state",
        f"/signals?limit=200&order=oldest&since={past}",
        f"/signals?limit=200&tier=all&offset={chance.randrange(10_000)}",
        f"/confluence?timeframe={timeframe}&direction={direction}&min_agree=1",
        "/stats",
    )
    return f"/api/v1{chance.choice(paths)}"


async def attack(url: str, api_key: str, seconds: float, connections: int) -> dict[str, int]:
    """Send the calls on many connections for some seconds; return the number of each status."""
    address, chance, statuses = urlsplit(url), random.Random(1), Counter[str]()
    now_ms, until = time.time_ns() // 1_000_000, time.monotonic() + seconds
    headers = {"Authorization": f"Bearer {api_key}"}

    async def send_calls() -> None:
        loop = asyncio.get_running_loop()
        while time.monotonic() < until:
            _, connection = await loop.create_connection(Connection, address.hostname, address.port)
            answer = b"-"
            while answer and time.monotonic() < until:
                call = Call(build_attack_path(chance, now_ms), "", headers)
                answer = await connection.send(encode_request(call, address.netloc))
                statuses[answer[9:12].decode() or "closed"] += 1
            connection.transport.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(send_calls())
    return dict(statuses)


@contextmanager
def run_attack(ours: Service, api_key: str, seconds: float) -> Iterator[Counter[str]]:
    """Run the attack in a process of its own; its statuses are counted when the block ends."""
    statuses = Counter[str]()
    options = json.dumps([ours.url, api_key, seconds, CONNECTIONS])
    command = [sys.executable, "-m", "bench.fairness", "--attack", options]
    with run_process(command, folder=TREE, stdout=-1) as running:
        yield statuses
        output, _ = running.communicate()
        statuses.update(json.loads(output))


def watch(ours: Service, seconds: float) -> Seen:
    """Make the calls of the other key at a fixed rate while /readyz is probed."""
    ended, probes = threading.Event(), list[bool]()

    def probe() -> None:
        while not ended.wait(PROBE_EVERY_S):
            try:
                response = httpx.get(f"{ours.url}/readyz", timeout=PROBE_TIMEOUT_S)
                probes.append(response.status_code == 200)
            except httpx.HTTPError:
                probes.append(False)

    with ThreadPoolExecutor() as pool:
        probing = pool.submit(probe)
        measured = [
            pool.submit(measure_arrivals, ours.url, build_call(case, ours), RATE, seconds)
            for case in CASES
        ]
        arrivals = tuple(each.result() for each in measured)
        ended.set()
        probing.result()
    return Seen(arrivals, len(probes), probes.count(False))


def build_call(case: Case, ours: Service) -> Call:
    """Return a call of the other key, over MCP; `since` is an hour ago."""
    call = case.build_mcp_call(ours)
    return replace(call, since_ms=ours.served_at_ms - 3_600_000, since_span_ms=60_000)


def measure(name: str, ours: Service, attacker_key: str) -> Iterator[Row]:
    """Yield the latencies of each case, quiet and under attack, the refusals and readiness."""
    watch(ours, 1.0)
    quiet = watch(ours, QUIET_S)
    with run_attack(ours, attacker_key, ATTACK_S + 6) as statuses:
        time.sleep(4)  # The connections are opened first.
        attacked = watch(ours, ATTACK_S)
    for case, before, during in zip(CASES, quiet.arrivals, attacked.arrivals, strict=True):
        yield build_row(f"{name}: {case.name} of another key", before, during)
    counts = ", ".join(f"{status}: {number:,}" for status, number in sorted(statuses.items()))
    yield Row(f"{name}: responses to the greedy key by status", counts)
    failed = quiet.failed_probes + attacked.failed_probes
    of = f"{failed} of {quiet.probes + attacked.probes}"
    yield Row(f"{name}: failed probes of /readyz", of, target="0", is_met=failed == 0)


def build_row(what: str, quiet: Arrivals, attacked: Arrivals) -> Row:
    """Return the row of a case: p50, p99 and maximum, and the ratio of the two p99."""
    ours, before = (format_percentiles(each.took_s, 50, 99, 100) for each in (attacked, quiet))
    p99_ms = np.percentile(attacked.took_s, 99) * 1e3
    ratio = p99_ms / (np.percentile(quiet.took_s, 99) * 1e3)
    is_met = ratio < MAX_RATIO and p99_ms < MAX_P99_MS and not attacked.failed
    failed = f", {attacked.failed} failed" if attacked.failed else ""
    return Row(
        f"{what}: p50 / p99 / max under attack{failed}",
        ours,
        f"{before} (quiet)",
        f"{ratio:.1f} (p99)",
        f"< {MAX_RATIO:g} and < {MAX_P99_MS:g} ms",
        bool(is_met),
    )


def measure_served(name: str, store: Store, *arguments: str) -> list[Row]:
    """Serve a store without computing, and measure it."""
    with serve_store(store, "--no-compute", *arguments) as ours:
        return list(measure(name, ours, create_key(store)))


def rows(store: Path | None = None) -> list[Row]:
    """Measure on copies of the store, or on a new store if none is given."""
    with ExitStack() as opened:
        file = opened.enter_context(copy_store(store))
        found = measure_served("SQLite", file)
        found += measure_served("SQLite, 2 workers", file, "--workers", "2")
        if (url := os.environ.get(POSTGRES_VARIABLE)) is None:
            return [*found, Row(f"PostgreSQL: skipped, {POSTGRES_VARIABLE} is not set", "")]
        run_command(url, "migrate", "--from", f"sqlite:///{file}")
        return found + measure_served("PostgreSQL", url)


def main() -> None:
    if sys.argv[1:2] == ["--attack"]:
        print(json.dumps(asyncio.run(attack(*json.loads(sys.argv[2])))))
    else:
        run_module(rows, __doc__)


if __name__ == "__main__":
    main()
