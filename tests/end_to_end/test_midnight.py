"""A served process over midnight, with its clock sped up by Debian's faketime.

Part of `make prove`: midnight at 20 times, half a day at 180, a quota exhausted before midnight.
The service's own limits run on the driven clock too: at 180 times, a read may take 55 ms.
"""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from schemas.vocabulary import format_instant
from tests.service.commands.test_cli import write_bars
from tests.support.signals_command import (
    build_faketime_variables,
    create_store,
    find_free_port,
    parse_events,
    run_signals,
    start_signals,
    write_cut_universe,
)

pytestmark = [pytest.mark.clause("steps", "access"), pytest.mark.prove, pytest.mark.long]

# At 01:00 the bar of OKB is late: it comes nine and a half minutes after its close.
EVENING, MIDNIGHT = "2026-11-14 19:40:00", "2026-11-15T00:00:00+00:00"
LATE, LATE_CLOSE_S, ARRIVES_AFTER_S = "OKB", 3600, 566
TICKERS = {"BTC", "ETH", "NVDA", "XAU", LATE}
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
MIDNIGHT_MS = int(datetime.fromisoformat(MIDNIGHT).timestamp() * 1000)


@dataclass(frozen=True)
class PassMade:
    market_time: int
    written_at: int
    rows: int
    published: int
    late: frozenset[str]


def commits_after(folder: Path, market_time: int) -> list[PassMade]:
    """Return the commits with a later market time, oldest first."""
    with closing(sqlite3.connect(folder / "signals.db")) as db:
        found = db.execute(
            "SELECT number, market_time, written_at, first_created_at, last_created_at "
            "FROM passes WHERE market_time > ? ORDER BY number",
            (market_time,),
        ).fetchall()
        made = []
        for number, time, written_at, first, last in found:
            counts = (
                "SELECT count(*), total(published) FROM changes WHERE created_at BETWEEN ? AND ?"
            )
            rows, published = db.execute(counts, (first, last)).fetchone()
            late = db.execute(
                "SELECT ticker FROM watermarks JOIN assets ON id = asset_id "
                "WHERE watermarks.pass = ? AND late > 0",
                (number,),
            )
            tickers = frozenset(ticker for (ticker,) in late)
            made.append(PassMade(time, written_at, rows, int(published), tickers))
        return made


def print_table(made: Sequence[PassMade], rate: int) -> None:
    print(f"\nrate x{rate}; lateness is from :03:00 to the time of writing, on the driven clock")
    print("| run | written | lateness s | rows | published | late |")
    print("|---|---|--:|--:|--:|---|")
    for row in made:
        hour, written = format_instant(row.market_time)[:16], format_instant(row.written_at)[11:23]
        lateness = (row.written_at - row.market_time) / 1000
        late = " ".join(sorted(row.late))
        print(f"| {hour} | {written} | {lateness:.1f} | {row.rows} | {row.published} | {late} |")


@pytest.mark.parametrize(
    ("rate", "start", "runs", "tolerance_minutes"),
    [
        (20, "2026-11-14 23:55:00", 2, 2),
        (180, "2026-11-14 23:42:00", 12, 30),
    ],
)
def test_a_driven_clock_is_followed_over_midnight(tmp_path, rate, start, runs, tolerance_minutes):
    driven = build_faketime_variables(start, rate)
    if not driven:
        pytest.skip("faketime is not installed (Debian: apt-get install faketime)")
    universe, port = write_cut_universe(tmp_path, TICKERS), find_free_port()
    with start_signals(
        tmp_path, "compute", clock_variables=build_faketime_variables(EVENING, 1), universe=universe
    ) as process:
        process.wait_for_line("Computing ")
        assert process.stop() == 0
    api_key = run_signals(tmp_path, "keys", "create", "--label", "tests").stdout.strip()

    with start_signals(
        tmp_path, "serve", clock_variables=driven, port=port, universe=universe
    ) as process:
        process.wait_for_line("Listening on ")
        for number in range(runs):
            hour = format_instant(MIDNIGHT_MS + number * HOUR_MS)
            process.wait_for_event("run", 60 + 3600 / rate, hour=hour)
        address = f"http://127.0.0.1:{port}/api/v1/state"
        meta = httpx.get(address, headers={"X-Api-Key": api_key}).json()["meta"]
        assert process.stop() == 0

    made = commits_after(tmp_path, MIDNIGHT_MS - 5 * HOUR_MS + 3 * MINUTE_MS)
    print_table(made, rate)
    caught_up, live = made[0], made[1:]
    assert caught_up.market_time == MIDNIGHT_MS - HOUR_MS + 3 * MINUTE_MS
    assert caught_up.rows > 0
    hours = [(row.market_time - 3 * MINUTE_MS - MIDNIGHT_MS) // HOUR_MS for row in live]
    assert sorted(set(hours)) == list(range(max(hours) + 1))
    assert max(hours) >= runs - 1
    for hour in set(hours):
        first = next(row for row in live if row.market_time >= MIDNIGHT_MS + hour * HOUR_MS)
        assert 0 <= first.written_at - first.market_time < tolerance_minutes * MINUTE_MS
    for row in live:
        waits = row.market_time == MIDNIGHT_MS + LATE_CLOSE_S * 1000 + 3 * MINUTE_MS
        arrives = MIDNIGHT_MS + (LATE_CLOSE_S + ARRIVES_AFTER_S) * 1000
        assert (LATE in row.late) == (waits and row.written_at < arrives), row
    assert meta["as_of"] >= format_instant(MIDNIGHT_MS + (runs - 1) * HOUR_MS + 3 * MINUTE_MS)
    assert (meta["simulated"], meta["stale"]) == (True, False)
    logged = parse_events(process.printed)
    assert not [event for event in logged if "failed" in event["event"]]
    pruned = [place for place, event in enumerate(logged) if event["event"] == "pruned"]
    assert len(pruned) == 1 + (runs - 1) // 24
    assert logged[pruned[0] - 1]["hour"].endswith("T00:00:00.000Z")
    done = run_signals(tmp_path, "audit", universe=universe)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "clean"), done.stdout


def test_a_quota_exhausted_before_midnight_is_full_again_after_retry_after(tmp_path):
    rate = 60
    driven = build_faketime_variables("2026-11-14 23:50:00", rate)
    if not driven:
        pytest.skip("faketime is not installed (Debian: apt-get install faketime)")
    source, port = f"files:{write_bars(tmp_path / 'bars')}", find_free_port()
    create_store(tmp_path)
    api_key = run_signals(tmp_path, "keys", "create", "--label", "tests").stdout.strip()
    settings = {"port": port, "source": source, "daily_limit": "2"}
    with start_signals(tmp_path, "serve", clock_variables=driven, **settings) as process:
        process.wait_for_line("--header")
        process.wait_until_caught_up()

        def called() -> httpx.Response:
            address = f"http://127.0.0.1:{port}/api/v1/state"
            return httpx.get(address, headers={"X-Api-Key": api_key})

        before = [called() for _ in range(3)]
        assert [answer.status_code for answer in before] == [200, 200, 429]
        assert before[2].headers["x-ratelimit-reset"] == "2026-11-15T00:00:00.000Z"
        retry_after_s = int(before[2].headers["retry-after"])
        assert 0 < retry_after_s <= 600
        time.sleep(retry_after_s / rate)  # what a client does, on the driven clock
        after = [called() for _ in range(3)]
        assert [answer.status_code for answer in after] == [200, 200, 429]
        assert after[0].headers["x-ratelimit-remaining"] == "1"
        assert after[0].headers["x-ratelimit-reset"] == "2026-11-16T00:00:00.000Z"
        assert process.stop() == 0
    with closing(sqlite3.connect(tmp_path / "signals.db-access")) as db:
        counted = db.execute("SELECT day, used FROM usage ORDER BY day").fetchall()
    days = MIDNIGHT_MS // 86_400_000
    assert counted == [(days - 1, 2), (days, 2)]
