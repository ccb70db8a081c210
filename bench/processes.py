"""Measure 1, 2 and 4 serving processes on one PostgreSQL database, and its transactions per call.

`python -m bench.processes URL [--write]` needs an empty database that has no other clients. The
load generator and the database server share the cores with the service.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from bench.calls import CASES, Case
from bench.load import measure_load
from bench.served import Service, copy_store, serve_store
from bench.table import Row, compare_rates, describe_hardware, format_table, replace_between_markers

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
PROCESS_COUNTS = (1, 2, 4)
CONNECTIONS, SECONDS, ROUNDS = 64, 2.0, 3
# PostgreSQL sessions report to the statistics view at most once a second.
COUNTER_DELAY_S = 1.5
COMMITS_SQL = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


def measure_best_rate(ours: Service, case: Case) -> float:
    """Return the calls per second of the best round."""
    loads = [
        measure_load(ours.url, case.build_mcp_call(ours), SECONDS, CONNECTIONS)
        for _ in range(ROUNDS)
    ]
    if any(load.failed for load in loads):
        raise SystemExit(f"{case.name}: some calls failed")
    return max(load.calls_s for load in loads)


def measure_transactions(url: str, ours: Service, case: Case) -> float:
    """Return the transactions per call on the database, under load."""
    before = asyncio.run(read_commits(url))
    load = measure_load(ours.url, case.build_mcp_call(ours), SECONDS, CONNECTIONS)
    time.sleep(COUNTER_DELAY_S)
    return (asyncio.run(read_commits(url)) - before) / (load.calls_s * SECONDS)


async def read_commits(url: str) -> int:
    session = await asyncpg.connect(url)
    try:
        return int(await session.fetchval(COMMITS_SQL))
    finally:
        await session.close()


def measure(url: str) -> Iterator[Row]:
    """Measure all cases at each number of processes, and with one process on SQLite."""
    # The first start computes the history, which must not run during the measurements.
    with serve_store(url):
        pass
    # --no-compute on both sides, so that no hourly run falls into a measurement.
    with copy_store(None) as file, serve_store(file, "--no-compute") as ours:
        on_sqlite = {case.name: measure_best_rate(ours, case) for case in CASES}
    found: dict[tuple[str, int], float] = {}
    costs: dict[str, float] = {}
    for count in PROCESS_COUNTS:
        with serve_store(url, "--no-compute", "--workers", str(count)) as ours:
            for case in CASES:
                found[case.name, count] = measure_best_rate(ours, case)
                if count == 1:
                    costs[case.name] = measure_transactions(url, ours, case)
    for case in CASES:
        one = found[case.name, 1]
        yield compare_rates(f"MCP {case.name}: 1 process / 1 on SQLite", one, on_sqlite[case.name])
        for count in PROCESS_COUNTS[1:]:
            yield compare_rates(f"the same: {count} processes / 1", found[case.name, count], one)
        yield Row("the same: transactions per call, 1 process", f"{costs[case.name]:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.processes", description=__doc__)
    parser.add_argument("url", help="postgresql://..., an empty database")
    parser.add_argument("--write", action="store_true", help=f"also update docs/{PAGE.name}")
    options = parser.parse_args()
    about = describe_hardware()
    text = f"{about}\n\n{format_table(measure(options.url))}\n"
    print(text)
    if options.write:
        PAGE.write_text(replace_between_markers(PAGE.read_text(), "processes", text))


if __name__ == "__main__":
    main()
