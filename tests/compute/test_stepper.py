"""The store ends with the same content for any batches, restarts and other assets."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from compute import hourly_pipeline as runs_module
from compute.indicators.contract import NO_READING, WARMUP
from compute.indicators.enzo import Enzo
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.universe import Universe
from schemas.vocabulary import LOGGED_IDS, TIMEFRAME_DURATIONS_S, TIMEFRAMES, compute_midnight_s
from tests.support.small_market import (
    ASSETS,
    DAY_S,
    DENSE,
    END,
    HOUR_S,
    REMOVED_ON,
    RENAMED_ON,
    START,
    Content,
    audit_store,
    copy_files,
    copy_to_folder,
    drop_commit_details,
    find_longer_close,
    list_opens,
    load_content,
    make_bars,
    open_pipeline,
    open_store,
    replay_bars,
    select_tickers,
    write_bars,
)

pytestmark = pytest.mark.clause("steps")

prove = pytest.mark.prove

TICKERS = tuple(ASSETS)
KEYS = (*(indicator.id for indicator in INDICATORS), "dexter")
CREATED_AT, TICKER, KEY, TIMEFRAME, CLOSE, EPOCH, BEFORE, AFTER, PRICE, PUBLISHED = range(10)
few = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Most stops lie at hours at which every asset has bars, some before the first or after the last.
stops = st.lists(
    st.integers(DENSE // HOUR_S - 50, END // HOUR_S + 5)
    | st.integers(START // HOUR_S - 5, END // HOUR_S + 5),
    max_size=6,
)


async def stopping(
    path: Path,
    folder: Path,
    universe: Universe,
    until: Sequence[int],
    restarts: Sequence[bool],
) -> Content:
    """Catch up to each hour in turn; if a restart is due, continue from the stored carries."""
    stretches: list[list[int]] = [[]]
    places = [*sorted(hour * HOUR_S for hour in until), END]
    for place, is_restarted in zip(places, [*restarts, *[True] * len(places)], strict=False):
        stretches[-1].append(place)
        stretches += [[]] if is_restarted else []
    for stretch in filter(None, stretches):
        async with open_store(path) as store:
            runs = await open_pipeline(store, folder, universe)
            for place in stretch:
                await runs.run_until(place)
            content = await load_content(store)
    return content


@few
@given(until=stops, restarts=st.lists(st.booleans(), min_size=7, max_size=7))
@pytest.mark.prove
async def test_any_stops_with_or_without_a_restart_end_in_the_same_content(
    until: list[int],
    restarts: list[bool],
    bars_folder: Path,
    universe: Universe,
    whole: Content,
):
    with TemporaryDirectory() as parent:
        held = await stopping(Path(parent) / "m.db", bars_folder, universe, until, restarts)
    assert drop_commit_details(held) == drop_commit_details(whole)


@pytest.mark.parametrize(
    ("first", "last"), [(197, 205), pytest.param(195, 220, marks=prove)]
)  # BTC gives its first reading on bar 200, and 4h and 1h bars end together at 200 and 204
@pytest.mark.prove
async def test_a_restart_at_every_hour_ends_in_the_same_content(
    first: int, last: int, tmp_path: Path, bars_folder: Path, universe: Universe, whole: Content
):
    until = range(DENSE // HOUR_S + first, DENSE // HOUR_S + last)
    held = await stopping(tmp_path / "m.db", bars_folder, universe, until, [True] * len(until))
    assert drop_commit_details(held) == drop_commit_details(whole)


@pytest.mark.parametrize(
    "pass_s",
    [
        150 * HOUR_S,
        *(
            pytest.param(pass_s, marks=prove)
            for pass_s in (36 * HOUR_S, 10 * DAY_S, 10_000 * DAY_S)
        ),
    ],
)
@pytest.mark.prove
async def test_batches_of_any_length_end_in_the_same_content(
    pass_s: int,
    tmp_path: Path,
    bars_folder: Path,
    universe: Universe,
    whole: Content,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(runs_module, "BATCH_S", pass_s)
    held = await replay_bars(tmp_path / "m.db", bars_folder, universe)
    assert len(held["passes"]) != len(whole["passes"])
    assert drop_commit_details(held) == drop_commit_details(whole)
    assert (await audit_store(tmp_path / "m.db", universe)).findings == []


@few
@given(others=st.lists(st.sampled_from(TICKERS[1:]), unique=True), until=stops)
@pytest.mark.prove
async def test_an_asset_reads_the_same_among_any_others_in_any_order(
    others: list[str], until: list[int], bars_folder: Path, universe: Universe, whole: Content
):
    chosen = [*others, "BTC"]  # whose bars reach to the end: a folder's last bar ends its runs
    own = [universe.by_ticker[ticker] for ticker in chosen]
    absent = [asset for asset in universe.assets if asset not in own]
    shuffled = Universe(assets=(*own, *absent), renamed_on=universe.renamed_on)
    with TemporaryDirectory() as parent:
        folder = copy_to_folder(bars_folder, chosen, Path(parent))
        held = await stopping(Path(parent) / "m.db", folder, shuffled, until, [False] * len(until))
    assert select_tickers(held, chosen) == select_tickers(whole, chosen)


@pytest.mark.clause("1.10", "1.12", "1.21")
def test_every_cell_has_its_first_reading_on_bar_200(whole: Content):
    closes = closes_of(whole)
    firsts: dict[tuple[str, str, str], tuple[Any, ...]] = {}
    for row in whole["changes"]:
        firsts.setdefault((row[TICKER], row[TIMEFRAME], row[KEY]), row)
    for (ticker, timeframe, _), row in firsts.items():
        assert row[CLOSE] == closes[ticker, timeframe][WARMUP]
        assert (row[BEFORE], row[PUBLISHED]) == (None, False)
    ripe = {place for place, its_closes in closes.items() if len(its_closes) > WARMUP}
    assert {("BTC", "1h"), ("MATIC", "4h"), ("XAU", "1d"), ("IBM", "1d")} <= ripe
    usual = {(*place, key) for place in ripe for key in KEYS[:-1]}
    assert {cell for cell in firsts if cell[2] != "dexter"} == usual


def closes_of(held: Content) -> dict[tuple[str, str], list[int]]:
    """Return the closes of each timeframe's bars, computed from the stored bars."""
    found: dict[tuple[str, str], set[int]] = {}
    for ticker, native, opened, *_ in held["bars"]:
        ended = opened + TIMEFRAME_DURATIONS_S[native]
        for timeframe in TIMEFRAMES if native == "1h" else (native,):
            close = find_longer_close(ticker, ended, timeframe)
            if ticker != "MATIC" or close < compute_midnight_s(REMOVED_ON):
                found.setdefault((ticker, timeframe), set()).add(close)
    return {place: sorted(closes) for place, closes in found.items()}


@pytest.mark.clause("1.12", "3.2.1", "4.6.12", "6.2")
def test_a_change_starts_from_the_reading_of_the_last_one_and_always_differs(whole: Content):
    readings_by_cell: dict[tuple[str, str, str], int] = {}
    for row in whole["changes"]:
        cell = (row[TICKER], row[TIMEFRAME], row[KEY])
        assert row[BEFORE] == readings_by_cell.get(cell)
        assert row[AFTER] != row[BEFORE]
        readings_by_cell[cell] = row[AFTER]
    held = {(ticker, timeframe, key): at for ticker, timeframe, key, at in whole["readings"]}
    assert readings_by_cell == held
    in_feed: dict[tuple[str, str, str], int] = {}
    for row in whole["changes"]:
        if row[PUBLISHED]:
            cell = (row[TICKER], row[TIMEFRAME], row[KEY])
            assert row[BEFORE] == in_feed.get(cell, row[BEFORE])
            in_feed[cell] = row[AFTER]
    assert {key for _, _, key in in_feed} == set(LOGGED_IDS)
    assert in_feed.items() <= held.items()


@pytest.mark.clause("2.1.17")
def test_a_change_carries_the_close_of_the_bar_that_moved_it(whole: Content):
    closes: dict[tuple[str, str, int], float] = {}
    for ticker, native, opened, *_, close, _volume in sorted(whole["bars"]):
        for timeframe in TIMEFRAMES if native == "1h" else (native,):
            end = find_longer_close(ticker, opened + TIMEFRAME_DURATIONS_S[native], timeframe)
            closes[ticker, timeframe, end] = close  # the last bar within a longer one ends it
    assert {row[TIMEFRAME] for row in whole["changes"]} == set(TIMEFRAMES)
    for row in whole["changes"]:
        assert row[PRICE] == closes[row[TICKER], row[TIMEFRAME], row[CLOSE]]


def test_rows_follow_one_order_and_one_sequence_of_times(whole: Content):
    order = [
        (row[CLOSE], TIMEFRAMES.index(row[TIMEFRAME]), row[TICKER], KEYS.index(row[KEY]))
        for row in whole["changes"]
    ]
    assert order == sorted(order)
    last, times = 0, []
    for row in whole["changes"]:
        last = max((row[CLOSE] + 180) * 1000, last + 1)
        times.append(last)
    assert [row[CREATED_AT] for row in whole["changes"]] == times
    shared = [row for row in whole["changes"] if row[CREATED_AT] % 1000]
    assert len(shared) > 50  # several rows in one run


@pytest.mark.clause("1.12", "1.18", "1.20", "3.2.1", "4.7.24")
def test_neither_first_readings_nor_perpkit_nor_dexter_are_published(whole: Content):
    for row in whole["changes"]:
        hidden = row[BEFORE] is None or row[KEY] in {"perpkit", "dexter"}
        assert row[PUBLISHED] is not hidden
    moved = {row[KEY] for row in whole["changes"] if row[BEFORE] is not None}
    assert moved == {*KEYS}


@pytest.mark.clause("2.4.7", "2.4.8", "2.4.9")
def test_dexter_repeats_enzo_until_the_day_it_was_renamed_for_assets_added_before(whole: Content):
    renamed = compute_midnight_s(RENAMED_ON)
    enzo = [row for row in whole["changes"] if row[KEY] == "enzo"]
    dexter = [row for row in whole["changes"] if row[KEY] == "dexter"]
    legacy = [row for row in enzo if row[TICKER] != "HYPE" and row[CLOSE] < renamed]

    def facts(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [(row[TICKER], *row[TIMEFRAME:PUBLISHED]) for row in rows]

    assert facts(dexter) == facts(legacy)
    assert any(row[CLOSE] >= renamed for row in enzo if row[TICKER] != "HYPE")
    assert any(row[TICKER] == "HYPE" for row in enzo)
    carried = {row[0] for row in whole["readings"] if row[2] == "dexter"}
    assert carried == {row[TICKER] for row in dexter} >= {"BTC", "MATIC", "XAU", "IBM"}


@pytest.mark.clause("2.4.9")
@pytest.mark.prove
async def test_a_change_at_the_midnight_of_the_renaming_is_only_enzos(
    tmp_path: Path, bars_folder: Path, universe: Universe, whole: Content
):
    daily = [row for row in whole["changes"] if row[TIMEFRAME] == "1d" and row[KEY] == "dexter"]
    ticker, midnight = next((row[TICKER], row[CLOSE]) for row in daily if row[BEFORE] is not None)
    day = datetime.fromtimestamp(midnight, UTC).date()
    earlier = Universe(assets=universe.assets, renamed_on=day)
    folder = copy_to_folder(bars_folder, [ticker, "BTC"], tmp_path)
    held = await replay_bars(tmp_path / "m.db", folder, earlier)
    own = [row for row in held["changes"] if (row[TICKER], row[TIMEFRAME]) == (ticker, "1d")]
    enzo, dexter = ([row[CLOSE] for row in own if row[KEY] == key] for key in ("enzo", "dexter"))
    assert midnight in enzo
    assert dexter == [close for close in enzo if close < midnight] != []


@pytest.mark.clause("2.4.12", "2.4.13")
def test_a_removed_asset_keeps_its_readings_and_no_longer_steps(whole: Content, bars_folder: Path):
    removed = compute_midnight_s(REMOVED_ON)
    assert int((bars_folder / "MATIC_1h.csv").read_text().splitlines()[-1].split(",")[0]) > removed
    bars = [row for row in whole["bars"] if row[0] == "MATIC"]
    assert max(row[2] for row in bars) == removed - 3 * HOUR_S
    assert max(row[1] for row in whole["funding"] if row[0] == "MATIC") < removed
    carried = {row[1]: row[6] for row in whole["carries"] if row[0] == "MATIC"}
    assert carried == {
        "1h": removed - 2 * HOUR_S,
        "4h": removed - 4 * HOUR_S,
        "1d": removed - DAY_S,
    }
    assert {row[1] for row in whole["readings"] if row[0] == "MATIC"} == {"1h", "4h"}


@pytest.mark.clause("3.2.1")
@pytest.mark.prove
async def test_an_asset_warms_up_in_silence_if_its_file_appears_later(
    tmp_path: Path, bars_folder: Path, universe: Universe, whole: Content
):
    joins = DENSE + 8 * DAY_S + 5 * HOUR_S
    newcomers = ("HYPE", "IBM", "MATIC")
    folder, path = copy_to_folder(bars_folder, ["BTC", "XAU"], tmp_path), tmp_path / "m.db"
    before = await replay_bars(path, folder, universe, joins)
    copy_files(bars_folder, newcomers, folder)
    await replay_bars(path, folder, universe, joins + 3 * HOUR_S)
    after = await replay_bars(path, folder, universe)
    later = after["changes"][len(before["changes"]) :]
    assert after["changes"][: len(before["changes"])] == before["changes"]
    first_run = to_market_ms(joins + HOUR_S)
    assert min(row[CREATED_AT] for row in later) >= first_run
    backlog = [row for row in later if row[TICKER] in newcomers and row[CLOSE] <= joins]
    assert len(backlog) > 10
    assert not any(row[PUBLISHED] for row in backlog)
    lively = [row for row in later if row[TICKER] == "HYPE" and row[KEY] != "perpkit"]
    assert all(row[PUBLISHED] for row in lively if row[BEFORE] is not None)
    assert any(row[PUBLISHED] for row in lively)
    stepped = ("BTC", "HYPE", "IBM", "XAU")
    held, wanted = select_tickers(after, stepped), select_tickers(whole, stepped)
    for name in ("readings", "bars"):
        assert held[name] == wanted[name]
    # A newcomer's backlog fires in one run, so that its publishers remember another hour.
    assert without_engines(held["carries"]) == without_engines(wanted["carries"])
    assert not [row for row in after["alerts"] if row[TICKER] == "IBM" and row[4] <= joins]
    # MATIC joins after its removal: its bars are kept, and never stepped.
    assert select_tickers(after, ["MATIC"])["bars"] == select_tickers(whole, ["MATIC"])["bars"]
    assert select_tickers(after, ["MATIC"])["carries"] == []
    assert (await audit_store(path, universe)).findings == []


def without_engines(carries: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row for row in carries if not row[2].startswith("alerts.")]


@pytest.mark.prove
async def test_bars_that_appear_before_the_market_clock_are_ignored(
    tmp_path: Path, universe: Universe
):
    rows = make_bars("BTC", list_opens(DENSE, DENSE + 320 * HOUR_S))
    late = {*range(250, 254), 271}
    punctual = [row for number, row in enumerate(rows) if number not in late]
    held = []
    for name, first_file in (("late", punctual[:290]), ("never", punctual)):
        folder = tmp_path / name
        folder.mkdir()
        write_bars(folder, "BTC", first_file)
        await replay_bars(tmp_path / f"{name}.db", folder, universe, DENSE + 300 * HOUR_S)
        write_bars(folder, "BTC", rows if name == "late" else punctual)
        held.append(await replay_bars(tmp_path / f"{name}.db", folder, universe))
        assert (await audit_store(tmp_path / f"{name}.db", universe)).findings == []
    assert [row[2] for row in held[0]["bars"]][-1] == rows[-1][0]
    assert drop_commit_details(held[0]) == drop_commit_details(held[1])


@pytest.mark.prove
async def test_replaying_a_finished_folder_again_writes_nothing(
    tmp_path: Path, bars_folder: Path, universe: Universe, whole: Content
):
    path = tmp_path / "m.db"
    assert await replay_bars(path, bars_folder, universe) == whole
    assert await replay_bars(path, bars_folder, universe, END + 90 * DAY_S) == whole


class SecondEnzo(Enzo):
    """A next version of Enzo, which reads the other way round."""

    version = 2

    def step(self, carry: Any, bar: Any) -> Any:
        carry, readings = super().step(carry, bar)
        return carry, np.where(readings == NO_READING, readings, -readings)


NEWER = tuple(SecondEnzo() if i.id == "enzo" else i for i in INDICATORS)


async def test_a_raised_version_is_rebuilt_in_silence_in_an_epoch_of_its_own(
    tmp_path: Path, bars_folder: Path, universe: Universe
):
    path = tmp_path / "m.db"
    before = await replay_bars(path, bars_folder, universe, DENSE + 11 * DAY_S)
    after = await replay_bars(path, bars_folder, universe, END, NEWER)
    fresh = await replay_bars(tmp_path / "fresh.db", bars_folder, universe, END, NEWER)
    assert after["changes"][: len(before["changes"])] == before["changes"]
    epochs = [row for row in after["epochs"] if row[3] == 1]
    assert {(row[2], row[4], row[7]) for row in epochs} == {
        ("enzo", 2, "replaces version 1"),
        ("alerts.enzo", 2002, "replaces version 2001"),
    }
    both = {"enzo", "alerts.enzo"}
    carried = {(*row[:3], row[6] + 1) for row in before["carries"] if row[2] in both}
    assert {(*row[:3], row[6]) for row in epochs} == carried
    moved = [row for row in after["changes"] if row[EPOCH] == 1]
    assert {row[KEY] for row in moved} == {"enzo"}
    assert all(row[CREATED_AT] > to_market_ms(DENSE + 11 * DAY_S) for row in moved)
    data, again = (
        {row[:5]: row[6:] for row in held["carries"] if row[2] == "enzo"} for held in (after, fresh)
    )
    assert data == again
    # An asset that no longer steps keeps the reading of its version; dexter stopped earlier.
    readings, fresh_readings = (
        [row for row in held["readings"] if row[0] != "MATIC" and row[2] != "dexter"]
        for held in (after, fresh)
    )
    assert readings == fresh_readings
