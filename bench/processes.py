"""What 1, 2 and 4 processes serve of one PostgreSQL database, and what a call asks of it.

`python -m bench.processes URL [--write]`, with an empty database that only this uses. The load and
the server of the database run on the same cores.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from bench.calls import CASES, Case
from bench.load import drive
from bench.served import SIGNALS, Ours, answering, copied, serving
from bench.table import Row, compared, hardware, replaced, table

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
COUNTS = (1, 2, 4)
CONNECTIONS, SECONDS, ROUNDS = 64, 2.0, 3
# After which a server has told its counters what a session did.
TELLS_WITHIN_S = 1.5
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


def calls_s(ours: Ours, case: Case) -> float:
    """Return how many calls a second were answered in the best of some rounds."""
    loads = [drive(ours.url, case.over_mcp(ours), SECONDS, CONNECTIONS) for _ in range(ROUNDS)]
    if any(load.failed for load in loads):
        raise SystemExit(f"{case.name}: some calls failed")
    return max(load.calls_s for load in loads)


def transactions(url: str, ours: Ours, case: Case) -> float:
    """Return how many transactions a call costs the database, under load."""
    before = asyncio.run(commits(url))
    load = drive(ours.url, case.over_mcp(ours), SECONDS, CONNECTIONS)
    time.sleep(TELLS_WITHIN_S)
    return (asyncio.run(commits(url)) - before) / (load.calls_s * SECONDS)


async def commits(url: str) -> int:
    session = await asyncpg.connect(url)
    try:
        return int(await session.fetchval(COMMITS))
    finally:
        await session.close()


def measured(url: str) -> Iterator[Row]:
    """Measure all cases at every number of processes, beside one process on SQLite."""
    with answering([SIGNALS, "serve"], url):
        pass
    with copied(None) as file, serving(file, "--no-compute") as ours:
        on_sqlite = {case.name: calls_s(ours, case) for case in CASES}
    found: dict[tuple[str, int], float] = {}
    costs: dict[str, float] = {}
    for count in COUNTS:
        with serving(url, "--no-compute", "--workers", str(count)) as ours:
            for case in CASES:
                found[case.name, count] = calls_s(ours, case)
                if count == 1:
                    costs[case.name] = transactions(url, ours, case)
    for case in CASES:
        one = found[case.name, 1]
        yield compared(f"MCP {case.name}: 1 process / 1 on SQLite", one, on_sqlite[case.name])
        for count in COUNTS[1:]:
            yield compared(f"the same: {count} processes / 1", found[case.name, count], one)
        yield Row("the same: transactions a call, 1 process", f"{costs[case.name]:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.processes", description=__doc__)
    parser.add_argument("url", help="postgresql://..., of an empty database")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name} too")
    given = parser.parse_args()
    about = hardware()
    text = f"{about}\n\n{table(measured(given.url))}\n"
    print(text)
    if given.write:
        PAGE.write_text(replaced(PAGE.read_text(), "processes", text))


if __name__ == "__main__":
    main()
