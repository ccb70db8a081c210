"""A running server follows another universe file on its store without a restart."""

import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.commands.test_serve import served_process
from tests.support.signals_command import ROOT, create_store, run_signals
from tests.support.small_market import DENSE, list_opens, make_bars, write_bars

pytestmark = pytest.mark.clause("sources")

FOLLOWED = ("BTC", "NVDA")
OTHERS = ("AAPL", "ADA", "AVAX", "DOGE", "ETC", "LINK", "LTC", "META", "MSFT", "XRP")
DROPPED = "XAU"
FIRST_COUNT, COUNT = 240, 300
Answers = dict[str, Any]


def twelve_assets(folder: Path) -> Path:
    """Cut twelve entries from the packaged file, only crypto and stocks.

    BTC and NVDA are followed by the alert engines, as there.
    """
    text = (ROOT / "compute" / "universe.toml").read_text(encoding="utf-8")
    head, *entries = text.split("\n[[asset]]\n")
    wanted = [entry for entry in entries if tomllib.loads(entry)["ticker"] in {*FOLLOWED, *OTHERS}]
    path = folder / "twelve.toml"
    path.write_text("\n[[asset]]\n".join([head, *wanted]), encoding="utf-8")
    return path


def write_market(folder: Path, count: int) -> None:
    for ticker in ("BTC", "DOGE", "NVDA", DROPPED):
        write_bars(folder, ticker, make_bars(ticker, list_opens(DENSE, DENSE + count * 3600)))


def fetch_answers(address: str, api_key: str) -> Answers:
    """Return the running server's answers about coverage, readings and feed."""
    headers = {"Authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=f"{address}/api/v1", headers=headers) as client:
        listing = client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        return {
            "catalog": client.get("/catalog").json(),
            "stats": client.get("/stats").json(),
            "state": client.get("/state").json(),
            "dropped": client.get("/signals", params={"ticker": DROPPED}).json(),
            "tools": {tool["name"]: tool for tool in listing.json()["result"]["tools"]},
        }


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory) -> tuple[Answers, Answers]:
    """The answers of one server process under the packaged universe, then under the other one.

    It steps the folder to its end; then the folder grows, and another process steps the rest.
    """
    folder = tmp_path_factory.mktemp("universe")
    bars = folder / "bars"
    bars.mkdir()
    write_market(bars, FIRST_COUNT)
    create_store(folder)
    api_key = run_signals(folder, "keys", "create", "--label", "tests").stdout.strip()
    with served_process(folder, source=f"files:{bars}") as (address, _):
        before = fetch_answers(address, api_key)
        write_market(bars, COUNT)
        (bars / f"{DROPPED}_1h.csv").unlink()
        other = str(twelve_assets(folder))
        replayed = run_signals(folder, "replay", "--bars", str(bars), universe=other)
        assert replayed.returncode == 0, replayed.stderr
        return before, fetch_answers(address, api_key)


def enum(answers: Answers, tool: str, argument: str) -> list[str]:
    values: list[str] = answers["tools"][tool]["inputSchema"]["properties"][argument]["enum"]
    return values


def coverage_rows(answers: Answers) -> dict[str, tuple[list[str], list[str]]]:
    rows = answers["catalog"]["coverage"]["assets"]
    return {row["ticker"]: (row["universe"], row["alerts"]) for row in rows}


@pytest.mark.clause("1.2", "1.5", "1.6")
@pytest.mark.prove
def test_the_running_catalog_counts_the_assets_of_the_new_file(before_and_after):
    counts = [
        [answers["catalog"]["assets"][n] for n in ("total", "crypto", "equities_and_metals")]
        for answers in before_and_after
    ]
    assert counts == [[251, 176, 75], [12, 8, 4]]
    before, after = (list(coverage_rows(answers)) for answers in before_and_after)
    assert sorted(after) == sorted([*FOLLOWED, *OTHERS])
    assert after == [ticker for ticker in before if ticker in after]


@pytest.mark.clause("1.23")
def test_the_tiers_follow_the_files_of_the_folder_and_the_alerts_of_the_universe(before_and_after):
    before, after = (answers["catalog"]["tiers"] for answers in before_and_after)
    assert (before["universe"]["assets"], after["universe"]["assets"]) == (4, 3)
    assert before["universe"]["logged_combinations"] == 4 * 3 * 6
    assert after["universe"]["logged_combinations"] == 3 * 3 * 6
    assert after["universe"]["state_readings"] == 3 * 3 * 7
    # Only assets that the source covers are followed, so the other four of the six never were.
    for tiers in (before, after):
        assert tiers["alerts"]["tickers"] == list(FOLLOWED)
        assert tiers["alerts"]["engines"] == 2 * 2 * 7


def test_an_asset_without_a_file_is_listed_as_not_covered(before_and_after):
    rows = coverage_rows(before_and_after[1])
    assert rows["NVDA"] == (["1h", "4h", "1d"], ["4h", "1d"])
    assert rows["DOGE"] == (["1h", "4h", "1d"], [])
    assert rows["XRP"] == ([], [])


def test_the_enums_of_the_tools_lose_the_class_that_is_gone(before_and_after):
    before, after = before_and_after
    for tool in ("signals_get_state", "signals_get_confluence"):
        assert enum(before, tool, "asset_class") == ["crypto", "stock", "metal"]
        assert enum(after, tool, "asset_class") == ["crypto", "stock"]
    assert enum(after, "signals_get_state", "indicator") == enum(
        before, "signals_get_state", "indicator"
    )


def test_the_running_stats_count_the_rows_of_the_second_replay(before_and_after):
    before, after = (answers["stats"] for answers in before_and_after)
    assert before["window"]["until"] < after["window"]["until"]
    totals = [stats["universe_tier"]["total_signals"] for stats in (before, after)]
    assert 0 < totals[0] < totals[1]
    starts = [stats["universe_tier"]["history_starts_at"] for stats in (before, after)]
    assert starts[0] == starts[1]


def test_dropped_assets_are_named_as_removed_everywhere(before_and_after):
    _, after = before_and_after
    for name in ("catalog", "stats", "state"):
        assert after[name]["meta"]["removed_assets"] == [DROPPED]


@pytest.mark.clause("2.4.11", "2.4.12")
def test_readings_and_rows_of_a_dropped_asset_stay(before_and_after):
    before, after = (
        {asset["ticker"]: asset for asset in answers["state"]["assets"]}
        for answers in before_and_after
    )
    assert after[DROPPED] == before[DROPPED]
    assert set(after) == set(before) == {"BTC", "DOGE", "NVDA", DROPPED}
    assert after != before
    assert (
        before_and_after[1]["dropped"]["signals"] == before_and_after[0]["dropped"]["signals"] != []
    )
