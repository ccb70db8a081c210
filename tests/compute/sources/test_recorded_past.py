"""A recording whose rows differ from those that a store computed is refused, on both databases."""

import gzip
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from compute.audit.audit import audit_market
from compute.indicators.registry import INDICATORS
from compute.sources.files import FilesSource
from compute.sources.history_checks import check_recorded_past
from compute.sources.source import SourceError
from compute.universe import Universe
from store.opening import open_sqlite_market
from store.sql.market_store import MarketStore
from tests.compute.conftest import RunSignals
from tests.support.row_builders import list_changes
from tests.support.signals_command import find_free_port
from tests.support.small_market import (
    DAY_S,
    HOUR_S,
    START,
    Row,
    list_opens,
    make_bars,
    open_pipeline,
    write_bars,
    write_table,
)
from tests.support.store_homes import StoreHome

pytestmark = pytest.mark.clause("sources")

DONE = START + 3 * DAY_S
BTC = make_bars("BTC", list_opens(START, DONE))
IBM = make_bars("IBM", list_opens(START, DONE, 24))
RATES = [(START + 8 * hour * HOUR_S + 7, hour / 10_000) for hour in range(9)]
AT = START + 5 * HOUR_S
AT_TEXT = "2024-01-03T05:00:00.000Z"


def write_folder(
    folder: Path,
    bars: Sequence[Row] = BTC,
    rates: Sequence[tuple[int, float]] = RATES,
    daily: Sequence[Row] = IBM,
) -> None:
    folder.mkdir(exist_ok=True)
    write_bars(folder, "BTC", bars)
    write_bars(folder, "IBM", daily, "1d")
    write_table(folder / "BTC_funding.csv", "ts,funding_rate", rates)


def scale(rows: Sequence[Row]) -> list[Row]:
    return [(row[0], *(1.5 * price for price in row[1:5]), row[5]) for row in rows]


def edit_close(rows: Sequence[Row], index: int) -> list[Row]:
    edited = list(rows)
    edited[index] = (*rows[index][:4], rows[index][3], rows[index][5])
    return edited


# Each case: how the folder is written again, the file that the error names, and its text.
CHANGED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "every bar": (
        lambda folder: write_folder(folder, scale(BTC)),
        "BTC_1h.csv",
        f"(72 changed); the first has ts {START} (2024-01-03T00:00:00.000Z), open: {BTC[0][1]} in "
        f"the database, {1.5 * BTC[0][1]} in the file",
    ),
    "one close": (
        lambda folder: write_folder(folder, edit_close(BTC, 5)),
        "BTC_1h.csv",
        f"(1 changed); the first has ts {AT} ({AT_TEXT}), close: {BTC[5][4]} in the database, "
        f"{BTC[5][3]} in the file",
    ),
    "the last bar": (
        lambda folder: write_folder(folder, edit_close(BTC, 71)),
        "BTC_1h.csv",
        "(1 changed)",
    ),
    "a bar is gone": (
        lambda folder: write_folder(folder, [*BTC[:5], *BTC[6:]]),
        "BTC_1h.csv",
        f"(1 removed); the first has ts {AT} ({AT_TEXT}), open: {BTC[5][1]} in the database, "
        "no row in the file",
    ),
    "bars behind the last run": (
        lambda folder: write_folder(folder, BTC[:-9]),
        "BTC_1h.csv",
        "(9 removed)",
    ),
    "no funding": (
        lambda folder: (folder / "BTC_funding.csv").unlink(),
        "BTC_funding.csv",
        "(9 removed)",
    ),
    "bars before the first": (
        lambda folder: write_folder(
            folder, [*make_bars("ETH", list_opens(START - DAY_S, START)), *BTC]
        ),
        "BTC_1h.csv",
        "(24 added); the first has ts",
    ),
    "a daily bar": (
        lambda folder: write_folder(folder, daily=edit_close(IBM, 1)),
        "IBM_1d.csv",
        "(1 changed)",
    ),
    "hourly bars instead of daily ones": (
        lambda folder: (
            (folder / "IBM_1d.csv").unlink(),
            write_bars(folder, "IBM", make_bars("IBM", list_opens(START, DONE))),
        ),
        "IBM_1h.csv",
        "(72 added)",
    ),
    "a rate": (
        lambda folder: write_folder(folder, rates=[*RATES[:2], (RATES[2][0], 0.04), *RATES[3:]]),
        "BTC_funding.csv",
        f"(1 changed); the first has ts {RATES[2][0]} (2024-01-03T16:00:07.000Z), funding_rate: "
        "0.0002 in the database, 0.04 in the file",
    ),
    "several kinds": (
        lambda folder: write_folder(
            folder, [BTC[0], *edit_close(BTC, 5)[2:]], [*RATES, (START + 9, 0.01)], daily=scale(IBM)
        ),
        "BTC_1h.csv",
        "(1 changed, 1 removed)",
    ),
}


async def compute(home: StoreHome, folder: Path, universe: Universe) -> MarketStore:
    """Return a store that has computed the folder up to DONE."""
    store = await home.open_market()
    await (await open_pipeline(store, folder, universe)).run_until(DONE)
    return store


@pytest.mark.parametrize("case", CHANGED)
@pytest.mark.sampled(3)
async def test_a_changed_past_is_refused_with_its_first_row(
    case: str, home: StoreHome, tmp_path: Path, universe: Universe
):
    folder = tmp_path / "folder"
    change, name, expected_text = CHANGED[case]
    write_folder(folder)
    store = await compute(home, folder, universe)
    try:
        await check_recorded_past(store, FilesSource(folder, universe), universe)
        change(folder)
        with pytest.raises(SourceError) as caught:
            await check_recorded_past(store, FilesSource(folder, universe), universe)
    finally:
        await store.close()
    text = str(caught.value)
    assert text.startswith(f"{folder / name}: rows that were computed differ")
    assert expected_text in text
    assert "\n" not in text
    assert ("2 other files differ too" in text) == (case == "several kinds")
    assert text.endswith("restore the file, or set SIGNALS_DATABASE_URL to another database")


@pytest.mark.prove
async def test_later_and_dropped_rows_other_volumes_and_assets_are_no_change(
    home: StoreHome, tmp_path: Path, universe: Universe
):
    folder = tmp_path / "folder"
    write_folder(folder)
    store = await compute(home, folder, universe)
    try:
        later = make_bars("BTC", list_opens(DONE, DONE + DAY_S))
        revised = [(*row[:5], 1.01 * row[5]) for row in BTC[40:]]
        write_folder(folder, [*later, *revised[::-1]], [*RATES[3:], (DONE + 7, 0.01)])
        write_bars(folder, "ETH", make_bars("ETH", list_opens(START, DONE)))
        packed = gzip.compress((folder / "BTC_1h.csv").read_bytes())
        (folder / "BTC_1h.csv").unlink()
        (folder / "BTC_1h.csv.gz").write_bytes(packed)
        source = FilesSource(folder, universe)
        await check_recorded_past(store, source, universe)
        await (await open_pipeline(store, folder, universe)).run_until(DONE + DAY_S)
        await check_recorded_past(store, source, universe)
        (block,) = await store.bars("BTC")
        assert block.open_time.tolist() == [row[0] for row in [*BTC, *later]]
        (folder / "IBM_1d.csv").unlink()
        await check_recorded_past(store, FilesSource(folder, universe), universe)
    finally:
        await store.close()


@pytest.mark.parametrize("hours", [1, 30])
async def test_a_file_that_ended_before_the_others_may_go_on(
    hours: int, home: StoreHome, tmp_path: Path, universe: Universe
):
    async def list_rows(store: MarketStore) -> set[tuple[object, ...]]:
        rows = await list_changes(store)
        return {(r.ticker, r.indicator, r.timeframe, r.close_time, r.after) for r in rows}

    folder, until = tmp_path / "folder", DONE + DAY_S
    eth = make_bars("ETH", list_opens(START, until))
    write_folder(folder)
    write_bars(folder, "ETH", eth[: -24 - hours])
    store = await compute(home, folder, universe)
    fresh = await open_sqlite_market(tmp_path / "fresh.db")
    try:
        write_folder(folder, [*BTC, *make_bars("BTC", list_opens(DONE, until))])
        write_bars(folder, "ETH", eth)
        await check_recorded_past(store, FilesSource(folder, universe), universe)
        for one in (store, fresh):
            await (await open_pipeline(one, folder, universe)).run_until(until)
        assert await list_rows(store) == await list_rows(fresh)
        assert (await audit_market(store, universe, INDICATORS)).findings == []
    finally:
        await fresh.close()
        await store.close()


@pytest.mark.prove
async def test_the_bars_of_a_removed_asset_are_compared_up_to_its_removal(
    home: StoreHome, bars_folder: Path, tmp_path: Path, universe: Universe
):
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(bars_folder / "MATIC_1h.csv", folder)
    end = FilesSource(folder, universe).get_end("MATIC")
    store = await home.open_market()
    try:
        await (await open_pipeline(store, folder, universe)).run_until(end or 0)
        await check_recorded_past(store, FilesSource(folder, universe), universe)
        lines = (folder / "MATIC_1h.csv").read_text().splitlines(keepends=True)
        (folder / "MATIC_1h.csv").write_text("".join(lines[:-1]))
        await check_recorded_past(store, FilesSource(folder, universe), universe)
        other = lines[1].replace(",", ",1", 1)
        (folder / "MATIC_1h.csv").write_text("".join([lines[0], other, *lines[2:]]))
        with pytest.raises(SourceError, match=r"\(1 changed\)"):
            await check_recorded_past(store, FilesSource(folder, universe), universe)
    finally:
        await store.close()


@pytest.mark.prove
def test_every_command_refuses_a_changed_past_and_stores_nothing(
    tmp_path: Path, signals: RunSignals, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "folder"
    write_folder(folder)
    assert signals("replay", "--bars", folder).status == 0
    before = (tmp_path / "cli.db").read_bytes()
    write_folder(folder, edit_close(BTC, 5))
    monkeypatch.setenv("SIGNALS_SOURCE", f"files:{folder}")
    monkeypatch.setenv("SIGNALS_PORT", str(find_free_port()))
    for command in (("replay", "--bars", folder), ("compute",), ("serve",)):
        ran = signals(*command)
        assert (ran.status, ran.out) == (1, "")
        assert ran.err.startswith(f"signals: {folder}/BTC_1h.csv: rows that were computed differ")
        assert ran.err.count("\n") == 1
    examined = signals("doctor")
    assert examined.status == 1
    assert f"fix  source: {folder}/BTC_1h.csv: rows that were computed differ" in examined.out
    assert (tmp_path / "cli.db").read_bytes() == before


def test_the_doctor_names_rejected_rows_and_ignored_files(
    tmp_path: Path, signals: RunSignals, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "folder"
    write_folder(folder, [*BTC, BTC[0], BTC[1]])
    (folder / "BTC_1h.csv~").write_text("")
    monkeypatch.setenv("SIGNALS_SOURCE", f"files:{folder}")
    expected_line = (
        f"warn source: files:{folder}; 2 rows rejected: open time is repeated; "
        "files ignored: BTC_1h.csv~\n"
    )
    assert expected_line in signals("doctor").out  # before the first start
    signals("replay", "--bars", folder)
    assert expected_line in signals("doctor").out


def test_the_doctor_reports_a_folder_with_only_future_bars(
    tmp_path: Path, signals: RunSignals, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "folder"
    shift_s = 100 * 365 * DAY_S
    write_folder(folder, [(row[0] + shift_s, *row[1:]) for row in BTC], daily=[])
    monkeypatch.setenv("SIGNALS_SOURCE", f"files:{folder}")
    examined = signals("doctor")
    assert examined.status == 1
    assert f"fix  source: {folder}: all bars are in the future" in examined.out
    ran = signals("compute")
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "all bars are in the future" in ran.err
