"""`signals verify --bars` recomputes the rows of a real service from the customer's own bars."""

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.commands.verify_bars import OwnBars
from tests.service.commands.test_serve import served_process
from tests.support.bar_sets import copy_newest_rows, generate_folder
from tests.support.generated_bars import END as GENERATED_END
from tests.support.signals_command import run_signals
from tests.support.small_market import DENSE, list_opens, make_bars, write_bars
from verifier.feed import Feed
from verifier.report import Report

pytestmark = [pytest.mark.clause("verify"), pytest.mark.usefixtures("use_single_ca")]

HOURS = 400
END = DENSE + HOURS * 3600


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[tuple[str, str, Path]]:
    """The address of a service on recorded bars, a key, and its bars."""
    folder, bars = tmp_path_factory.mktemp("service"), tmp_path_factory.mktemp("bars")
    for ticker in ("BTC", "ETH"):
        write_bars(bars, ticker, make_bars(ticker, list_opens(DENSE, END)))
    with served_process(folder, source=f"files:{bars}") as (address, _):
        api_key = run_signals(folder, "keys", "create", "--label", "me").stdout.strip()
        yield address, api_key, bars


@pytest.fixture
def verify(service, tmp_path):
    """A function that verifies with the bars of a folder; it returns the status and the lines."""
    address, api_key, _ = service

    def run(bars: Path, *arguments: str) -> tuple[int, list[str]]:
        options = ("--url", address, "--state", str(tmp_path / "state"), "--bars", str(bars))
        done = run_signals(tmp_path, "verify", *options, *arguments, api_key=api_key)
        assert done.stderr.count("signals:") == done.stdout.count("checked:") - 1 == 0, done.stderr
        return done.returncode, done.stdout.splitlines()

    return run


@pytest.fixture
def own(service, tmp_path) -> Path:
    """A copy of the service's bars, for a test to change."""
    return Path(shutil.copytree(service[2], tmp_path / "own"))


def count(lines: list[str], what: str) -> int:
    found = [part for part in lines[0].removeprefix("checked: ").split(", ") if what in part]
    return int(found[0].split()[0]) if found else 0


def test_the_bars_of_the_service_give_every_row(verify, own):
    status, lines = verify(own)
    assert (status, lines[-1]) == (0, "verified")
    assert count(lines, "rows as your bars give them") == count(lines, "rows in the log") > 40


def test_only_the_bars_of_a_period_and_of_the_given_files_count(verify, own):
    (own / "ETH_1h.csv").unlink()
    period = ("--from", "2024-08-15T00:00:00Z", "--until", "2024-08-17T00:00:00Z")
    status, lines = verify(own, *period)
    assert status == 0
    recomputed = count(lines, "rows as your bars give them")
    assert 0 < recomputed < count(lines, "rows in the log")
    assert any(line.endswith(f"rows are of assets without bars in {own}") for line in lines)


def test_a_shorter_history_leaves_rows_unverified_and_says_why(verify, own):
    path = own / "BTC_1h.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows[100:]]) + "\n")
    status, lines = verify(own)
    assert (status, lines[-1]) == (2, "not verified")
    unverified = [line for line in lines if line.startswith("not verified: universe BTC")]
    assert unverified
    assert all("your bars begin " in line for line in unverified)


def test_bars_of_another_venue_leave_rows_unverified_with_both_prices(verify, own):
    path = own / "BTC_1h.csv"
    header, *rows = path.read_text().splitlines()
    cells = [row.split(",") for row in rows]
    raised = [
        [at, *(repr(1.01 * float(price)) for price in prices), volume]
        for at, *prices, volume in cells
    ]
    path.write_text("\n".join([header, *map(",".join, raised)]) + "\n")
    status, lines = verify(own)
    assert (status, lines[-1]) == (2, "not verified")
    assert any(re.search(r"the bar closed at [\d.]+ there, at [\d.]+ in", line) for line in lines)


async def test_rows_that_the_feed_withholds_without_a_cause_are_findings(tmp_path):
    copy_newest_rows(generate_folder(1500), tmp_path, ("BTC_1h.csv", "BTC_funding.csv"), 1500)
    end = datetime.fromtimestamp(GENERATED_END, UTC)
    feed = Feed("2025-07-15T00:00:00.000Z", end, [])
    report = Report()
    until = 1000 * (GENERATED_END - 86_400)
    await OwnBars(tmp_path, None, None, until).compare(feed, report)
    assert report.status == 1
    assert all(
        re.search(r" 1h of .*: the feed has no row, your bars give \w+ to \w+: nothing in", one)
        for one in report.findings
    )
    assert len(report.findings) > 20
    # Alerts and longer bars depend on a longer history, and these bars have gaps.
    assert all("your bars begin " in one or "your bars lack " in one for one in report.obstacles)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--from", "2024-08-15T00:00:00Z"), "--from and --until need --bars DIR"),
        (("--bars", "none"), "none: no such folder of bars"),
    ],
)
def test_bad_options_exit_with_2_in_one_line(service, tmp_path, arguments, reason):
    address, api_key, _ = service
    done = run_signals(tmp_path, "verify", "--url", address, *arguments, api_key=api_key)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("change", [{"indicator": "none"}, {"timeframe": "2h"}, {"id": "a.b"}])
async def test_a_row_that_no_bars_can_give_is_not_verified(tmp_path, change):
    write_bars(tmp_path, "BTC", make_bars("BTC", list_opens(DENSE, DENSE + 4 * 3600)))
    row = {
        **{"id": f"universe.BTC.enzo.1h.{DENSE + 7200}.0", "tier": "universe", "ticker": "BTC"},
        **{"indicator": "enzo", "timeframe": "1h", "price": 1.0, "action": None},
        **{"transition": {"from": "neutral", "to": "bullish"}, **change},
    }
    end = datetime.fromtimestamp(DENSE + 4 * 3600, UTC)
    report = Report()
    feed = Feed("2024-01-01T00:00:00.000Z", end, [row])
    await OwnBars(tmp_path, None, None, None).compare(feed, report)
    assert report.obstacles == [f"{row['id']} is not a row that bars can give"]
