"""What authentication and quota cost a call, and what a committing run costs a counted call.

`python -m bench.quota` serves the MCP endpoint twice, each time by uvicorn in a process of its own:
with the quota, and with admissions that let everyone in uncounted. A load process beside calls them
by turns; then it calls the first one while market passes commit in that process.
"""

import argparse
import asyncio
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from access.admission import Admissions, Admitted
from access.keys import Keys
from mcp_server.calls import Calls
from mcp_server.context import Boards, Context
from mcp_server.endpoint import PATHS, McpEndpoint
from mcp_server.gate import Gate
from mcp_server.tools.registry import TOOLS
from rest_shim.failures import NoStore
from schemas.results import Quota
from schemas.vocabulary import DAILY_LIMIT, INDICATOR_IDS, TIMEFRAMES
from store.rows import ChangeRow
from store.sqlite import SqliteMarketStore
from store.sqlite_access import SqliteAccessStore
from tests.serving import HOUR_MS, NOON, change, coverage, seed, work

ROUNDS, SECONDS = 10, 1.0
CONNECTIONS = (1, 64)
GOAL = 0.40
RUNS, RUN_EVERY_S = 40, 0.25
CELLS = 1500
LIMIT = 1_000_000_000
CALLS = {"signals_get_usage": {}, "signals_get_state": {"ticker": "BTC"}}


class OpenAdmissions:
    """Lets everyone in, uncounted, whatever key is sent."""

    everyone = Admitted(
        "bench",
        Quota(
            daily_limit=DAILY_LIMIT,
            used_today=1,
            remaining_today=DAILY_LIMIT - 1,
            resets_at="2026-10-01T00:00:00.000Z",
        ),
    )

    async def admit(
        self, authorization: str | None, x_api_key: str | None, *, even_spent: bool = False
    ) -> Admitted:
        return self.everyone


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


async def serve(folder: Path, port: int, *, is_counted: bool, runs: int) -> None:
    """Serve until killed; print when each run was committed, where any are to be."""
    market = await SqliteMarketStore.open(folder / "market.db")
    access = await SqliteAccessStore.open(folder / "market-access.db")
    counted = Admissions(access, wall_clock, mode=None, daily_limit=LIMIT)
    base_url = f"http://127.0.0.1:{port}"
    context = Context(Boards(market), base_url, base_url, wall_clock, None, LIMIT)
    calls = Calls(counted if is_counted else OpenAdmissions(), context)  # type: ignore[arg-type]
    app = Starlette(
        routes=[Route(path, McpEndpoint(calls, TOOLS)) for path in PATHS],
        middleware=[Middleware(NoStore), Middleware(Gate, base_url=base_url, docs=base_url)],
    )
    config = uvicorn.Config(
        app, port=port, lifespan="off", log_level="warning", access_log=False, proxy_headers=False
    )
    gc.collect()
    gc.freeze()  # as `signals serve` does once it is ready
    committing = asyncio.create_task(commit(market, runs))
    await uvicorn.Server(config).serve()
    await committing


async def commit(market: SqliteMarketStore, runs: int) -> None:
    """Commit passes of as many rows as a midnight run writes; print when each began and ended."""
    for run in range(1, runs + 1):
        await asyncio.sleep(RUN_EVERY_S)
        at = NOON + run * HOUR_MS
        rows = list(changes(at, 1 if run % 2 else -1))
        began = time.time()
        await market.commit(work(at, rows))
        print(began, time.time(), flush=True)


def changes(at: int, after: int) -> Iterator[ChangeRow]:
    """Yield the changes of one run: every cell turns."""
    for number in range(CELLS):
        asset, cell = divmod(number, len(INDICATOR_IDS) * len(TIMEFRAMES))
        indicator, timeframe = divmod(cell, len(TIMEFRAMES))
        yield change(
            at + number, f"T{asset}", INDICATOR_IDS[indicator], TIMEFRAMES[timeframe], after, -after
        )


async def load(port: int, tool: str, api_key: str, connections: int, seconds: float) -> None:
    """Call a tool again and again over some connections; print when each call began and ended."""
    params = {"name": tool, "arguments": CALLS[tool]}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    body = json.dumps(rpc).encode()
    head = f"POST {PATHS[0]} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api_key}\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    times: list[tuple[float, float]] = []
    until = time.time() + seconds

    async def call_on() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.time()) < until:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer)
            assert length is not None
            text = await reader.readexactly(int(length[1]))
            assert b'"isError":false' in text, text
            times.append((began, time.time()))
        writer.close()

    await asyncio.gather(*(call_on() for _ in range(connections)))
    print(json.dumps(times))


def loaded(port: int, tool: str, api_key: str, connections: int, seconds: float) -> np.ndarray:
    """Run the load process to its end; return begin and end of each call."""
    asked = [str(port), tool, api_key, str(connections), str(seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.quota", "--load", *asked],
        check=True,
        capture_output=True,
        text=True,
    )
    return np.array(json.loads(done.stdout))


@contextmanager
def served(folder: Path, port: int, kind: str, runs: int = 0) -> Iterator["subprocess.Popen[str]"]:
    asked = [str(folder), str(port), kind, str(runs)]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.quota", "--serve", *asked], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def listening(port: int, api_key: str) -> None:
    """Wait until a server answers."""
    for _ in range(100):
        with suppress(subprocess.CalledProcessError):
            loaded(port, "signals_get_usage", api_key, 1, 0.1)
            return
    raise SystemExit(f"nothing listens on port {port}")


async def made(folder: Path) -> str:
    """Seed a store and return a key."""
    market = await SqliteMarketStore.open(folder / "market.db")
    await seed(market, coverage())
    await market.close()
    access = await SqliteAccessStore.open(folder / "market-access.db")
    api_key = await Keys(access, wall_clock).create("bench")
    await access.close()
    return api_key


def throughput(ports: dict[str, int], api_key: str) -> None:
    """Print the best rate of all rounds: what else runs on the machine can only slow a round."""
    print("| call | connections | uncounted, calls/s | with key and quota | lost |")
    print("|---|--:|--:|--:|--:|")
    for tool in CALLS:
        for connections in CONNECTIONS:
            rates: dict[str, list[float]] = {kind: [] for kind in ports}
            for _ in range(ROUNDS):
                for kind, port in ports.items():
                    times = loaded(port, tool, api_key, connections, SECONDS)
                    rates[kind].append(len(times) / (times[:, 1].max() - times[:, 0].min()))
            free, counted = max(rates["open"]), max(rates["counted"])
            lost = 1 - counted / free
            verdict = f" (goal: at most {GOAL:.0%})" if connections == max(CONNECTIONS) else ""
            cells = [f"`{tool}`", str(connections), f"{free:,.0f}", f"{counted:,.0f}"]
            print(f"| {' | '.join(cells)} | {lost:.0%}{verdict} |", flush=True)


def stall(folder: Path, port: int, api_key: str) -> None:
    """Print how long counted calls take beside commits, and between them."""
    with served(folder, port, "counted", RUNS) as process:
        listening(port, api_key)
        times = loaded(port, "signals_get_usage", api_key, 1, RUNS * RUN_EVERY_S)
        assert process.stdout is not None
        runs = [tuple(map(float, process.stdout.readline().split())) for _ in range(RUNS)]
    beside = np.zeros(len(times), dtype=bool)
    for began, ended in runs:
        beside |= (times[:, 0] < ended) & (times[:, 1] > began)
    took = (times[:, 1] - times[:, 0]) * 1e3
    runs_ms = np.array([ended - began for began, ended in runs]) * 1e3
    print(
        f"\n{RUNS} runs of {CELLS:,} changes; a commit takes {np.median(runs_ms):.0f} ms (median)."
    )
    print("| counted calls, 1 connection | calls | p50 ms | p99 ms | max ms |")
    print("|---|--:|--:|--:|--:|")
    print_row("while a run commits", took[beside])
    print_row("between runs", took[~beside])


def print_row(what: str, took: Iterable[float]) -> None:
    ms = np.array(took)
    cells = [f"{np.percentile(ms, share):.1f}" for share in (50, 99)]
    print(f"| {what} | {len(ms)} | {' | '.join(cells)} | {ms.max():.1f} |")


def measured(port: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        api_key = asyncio.run(made(folder))
        ports = {"open": port, "counted": port + 1}
        with served(folder, port, "open"), served(folder, port + 1, "counted"):
            for one in ports.values():
                listening(one, api_key)
            throughput(ports, api_key)
        stall(folder, port + 2, api_key)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8900, help="the first of three")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        folder, port, kind, runs = given.serve
        asyncio.run(serve(Path(folder), int(port), is_counted=kind == "counted", runs=int(runs)))
    elif given.load:
        port, tool, api_key, connections, seconds = given.load
        asyncio.run(load(int(port), tool, api_key, int(connections), float(seconds)))
    else:
        measured(given.port)


if __name__ == "__main__":
    main()
