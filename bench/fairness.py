"""How long does a key wait while another one sends the most expensive calls on 1,500 connections?

The attack ignores Retry-After.
"""

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bench.calls import REST_PATH, SIGNALS, STATE_OF_ONE
from bench.load import Arrivals, Call, run_wrk, watch
from bench.served import copy_store, create_key, serve_store
from bench.table import Row, format_percentiles
from schemas.vocabulary import DAY_MS, format_instant

CONNECTIONS, ATTACK_CALLS = 1_500, 20_000
# Calls of each kind a second.
RATE, QUIET_S, ATTACK_S, OPENING_S = 20, 10, 20, 4
MAX_RATIO, MAX_P99_MS = 5, 100
TIMEFRAMES, DIRECTIONS, CLASSES = ("1h", "4h", "1d"), ("bullish", "bearish"), ("crypto", "stock")
HISTORY_DAYS = 20
READY = Call("/readyz")


def build_attack_path(now_ms: int) -> str:
    """Return the path of one of the most expensive calls, hardly ever the same twice."""
    past = format_instant(now_ms - random.randrange(DAY_MS, HISTORY_DAYS * DAY_MS))
    timeframe, direction = random.choice(TIMEFRAMES), random.choice(DIRECTIONS)
    paths = (
        f"/state?as_of={past}",
        f"/state?as_of={past}&timeframe={timeframe}&asset_class={random.choice(CLASSES)}",
        f"/confluence?as_of={past}&timeframe={timeframe}&direction={direction}&min_agree=1",
        "/state",
        f"/signals?limit=200&order=oldest&since={past}",
        f"/signals?limit=200&tier=all&offset={random.randrange(10_000)}",
        f"/confluence?timeframe={timeframe}&direction={direction}&min_agree=1",
        "/stats",
    )
    return REST_PATH + random.choice(paths)


def watch_kinds(url: str, kinds: Sequence[Sequence[Call]], seconds: float) -> list[Arrivals]:
    """Make calls of several kinds, each RATE times a second; return the arrivals of each kind."""
    calls = [call for turn in zip(*kinds, strict=True) for call in turn]
    seen = watch(url, calls, RATE * len(kinds), seconds)
    return [Arrivals(*(part[at :: len(kinds)] for part in seen)) for at in range(len(kinds))]


def rows() -> Iterator[Row]:
    now_ms = time.time_ns() // 1_000_000
    # Asks for few new rows, as a poll does.
    poll = SIGNALS._replace(name="poll", since=(now_ms - 3_600_000, now_ms - 3_540_000))
    cases, number = (poll, STATE_OF_ONE), RATE * ATTACK_S
    with copy_store() as file, serve_store(file, "--no-compute") as ours:
        key, greedy_key = create_key(file), create_key(file)
        kinds = [*(case.list_calls("MCP", key, number=number) for case in cases), [READY] * number]
        watch_kinds(ours.url, kinds, 1)
        before = watch_kinds(ours.url, kinds, QUIET_S)
        attack = [Call(build_attack_path(now_ms), "", greedy_key) for _ in range(ATTACK_CALLS)]
        with ThreadPoolExecutor() as pool:
            attacking = pool.submit(run_wrk, ours.url, attack, ATTACK_S + 6, CONNECTIONS)
            # The connections are opened first.
            time.sleep(OPENING_S)
            during = watch_kinds(ours.url, kinds, ATTACK_S)
        if not attacking.result()[0]:
            raise SystemExit("no call of the attack was answered")
    for case, quiet, attacked in zip(cases, before, during, strict=False):
        quiet_ms, p99_ms = (np.percentile(each.took_s, 99) * 1e3 for each in (quiet, attacked))
        is_met = p99_ms < MAX_RATIO * quiet_ms and p99_ms < MAX_P99_MS and not attacked.failed.any()
        yield Row(
            f"{case.name} of another key under attack: p50 / p99 / max",
            f"{format_percentiles(attacked.took_s)}, {attacked.failed.sum()} failed",
            f"{format_percentiles(quiet.took_s)} (quiet)",
            f"{p99_ms / quiet_ms:.1f} (p99)",
            f"< {MAX_RATIO:g} and < {MAX_P99_MS:g} ms",
            bool(is_met),
        )
    failed = during[-1].failed
    of = f"{failed.sum()} of {len(failed)}"
    yield Row("failed probes of /readyz meanwhile", of, target="0", is_met=not failed.any())
