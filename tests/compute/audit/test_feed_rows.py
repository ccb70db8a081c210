"""Stored rows as columns: their order, their cells, and matching them without building rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.audit.epochs import Epochs
from compute.audit.feed_rows import CellNumbers, FeedReader, FeedRows, PartRows
from compute.audit.row_matcher import MatchedRows, RowMatcher
from compute.indicators.contract import NO_READING
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.stepper import Cell, Changes, list_series_keys, list_stored_keys
from schemas.vocabulary import TIMEFRAME_CODES
from store.change_columns import ChangeColumns, build_columns
from store.codes import KEY_CODES
from store.market_rows import ChangeRow, EpochRow
from store.sql import market_store
from tests.support.row_builders import NOW, make_alert, make_batch, make_change
from tests.support.small_market import open_store

pytestmark = pytest.mark.clause("audit")

IDS = {"BTC": 5, "ETH": 2, "XAU": 9}
TICKERS = {id_: ticker for ticker, id_ in IDS.items()}
KEYS = list_stored_keys(INDICATORS)


def to_columns(rows: list[ChangeRow]) -> ChangeColumns:
    return build_columns(
        [
            (at, IDS.get(ticker, 77), KEY_CODES[key], TIMEFRAME_CODES[timeframe], *rest)
            for at, ticker, key, timeframe, *rest in rows
        ]
    )


def test_rows_of_both_tiers_are_in_order_and_of_equal_times_the_alert_is_first() -> None:
    changes = [make_change(NOW + n, ticker, before=n or None) for n, ticker in enumerate(IDS)]
    alerts = [make_alert(NOW + 1), make_alert(NOW + 9)]
    rows = FeedRows(to_columns(changes), alerts, TICKERS)
    expected = [changes[0], alerts[0], changes[1], changes[2], alerts[1]]
    assert list(rows) == rows[:] == expected
    assert rows.created_at.tolist() == [row.created_at for row in expected]
    assert [rows[at] for at in rows.change_places.tolist()] == changes
    assert [rows[at] for at in rows.alert_places.tolist()] == alerts


async def test_each_take_continues_after_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(market_store, "COLUMNS_PER_READ", 2)
    changes = [make_change(NOW + 10 * n, "ETH" if n % 2 else "BTC") for n in range(7)]
    alerts = [make_alert(NOW + 10 * n + 5) for n in range(7)]
    rows = [row for pair in zip(changes, alerts, strict=True) for row in pair]
    async with open_store(tmp_path / "market.db") as store:
        await store.commit(make_batch(changes=changes, alerts=alerts))
        reader = FeedReader(store)
        taken = [list(await reader.take(until)) for until in (-1, NOW, NOW + 31, NOW + 31, 0)]
        assert taken == [[], rows[:1], rows[1:7], [], []]
        assert list(await reader.take_rest()) == rows[7:]
        assert list(await reader.take_rest()) == []


def test_cells_have_the_numbers_of_their_blocks_stepper() -> None:
    blocks = [["BTC", "ETH"], ["XAU"]]
    cells = [[Cell(*s, key) for s in list_series_keys(block) for key in KEYS] for block in blocks]
    rows = [
        make_change(NOW + n, cell.ticker, cell.key, cell.timeframe)
        for n, cell in enumerate([*cells[0], *cells[1]])
    ]
    block, cell = CellNumbers(blocks, KEYS).find(to_columns(rows), TICKERS)
    assert block.tolist() == [0] * len(cells[0]) + [1] * len(cells[1])
    assert cell.tolist() == [*range(len(cells[0])), *range(len(cells[1]))]
    # An unknown asset, one of another universe, and codes of no cell.
    strange = to_columns([make_change(NOW, "SOL"), make_change(NOW, "XAU")])
    strange = strange._replace(indicator=np.array([4, 8]), timeframe=np.array([0, 0]))
    no_timeframe = strange._replace(indicator=np.array([4, 4]), timeframe=np.array([3, -1]))
    for columns in (strange, no_timeframe):
        for number in CellNumbers(blocks, KEYS).find(columns, TICKERS):
            assert number.tolist() == [-1, -1]


CELLS = tuple(Cell(*series, key) for series in list_series_keys(["BTC", "ETH"]) for key in KEYS)
VERSIONS = {indicator.id: indicator.version for indicator in INDICATORS}
REBUILT = Cell("ETH", "1h", "enzo")
EPOCHS = Epochs(
    [
        EpochRow(*REBUILT, 0, VERSIONS["enzo"], 0, 0, "first"),
        EpochRow(*REBUILT, 1, VERSIONS["enzo"], 0, 7200, "layout"),
    ],
    VERSIONS,
    (),
)


@st.composite
def draw_changes(draw: st.DrawFn) -> Changes:
    """Draw changes as a stepper returns them."""
    places = st.tuples(st.integers(1, 3), st.integers(0, len(CELLS) - 1))
    chosen = sorted(draw(st.lists(places, unique=True, max_size=8)))
    hours = np.array([3600 * hour for hour, _ in chosen], dtype=np.int64)
    readings = st.sampled_from([NO_READING, -1, 0, 1])
    before = np.array([draw(readings) for _ in chosen], dtype=np.int8)
    after = np.array([draw(st.integers(-1, 1)) for _ in chosen], dtype=np.int8)
    cell = np.array([number for _, number in chosen], dtype=np.int64)
    return Changes(hours, hours, cell, before, after, np.arange(len(chosen)) / 4)


Alteration = Callable[[list[ChangeRow]], list[ChangeRow]]
ALTERATIONS: dict[str, Alteration] = {
    "nothing": lambda rows: rows,
    "one less": lambda rows: rows[1:],
    "one more": lambda rows: [*rows, make_change(NOW, "BTC", "llnr", "4h")],
    "one twice": lambda rows: [*rows[:1], *rows],
    "another order": lambda rows: rows[::-1],
    "a price": lambda rows: [
        row._replace(price=row.price + (n == 0)) for n, row in enumerate(rows)
    ],
    "an epoch": lambda rows: [row._replace(epoch=1) for row in rows],
    "a bar": lambda rows: [row._replace(close_time=7) for row in rows[:1]] + rows[1:],
    "published": lambda rows: [row._replace(published=not row.published) for row in rows],
    "before": lambda rows: [row._replace(before=None) for row in rows],
    "after": lambda rows: [row._replace(after=1) for row in rows],
}


def summarize(found: MatchedRows) -> tuple[object, ...]:
    """Return what was found, in an order that does not depend on how."""
    matches = sorted(zip(found.order.T.tolist(), found.stored.tolist(), strict=True))
    unmatched = sorted(row for at, row in found.rows.items() if found.stored[at] < 0)
    return matches, unmatched, found.differences, found.surplus, found.foreign


@given(changes=draw_changes(), alteration=st.sampled_from([*ALTERATIONS]))
def test_rows_that_are_never_built_are_matched_like_those_that_are(
    changes: Changes, alteration: str
) -> None:
    numbers = {cell: 100 + number for number, cell in enumerate(CELLS)}
    matcher = RowMatcher(numbers, {}, EPOCHS, {"BTC": 5_000_000})
    times = to_market_ms(changes.run)
    rows = [
        row._replace(epoch=EPOCHS.find_epoch(CELLS[number], row.close_time))
        for row, number in zip(
            matcher._build_change_rows(changes), changes.cell.tolist(), strict=True
        )
    ]
    assert [row.created_at for row in rows] == times.tolist()
    columns = to_columns(ALTERATIONS[alteration](rows))
    _, cell = CellNumbers([["BTC", "ETH"]], KEYS).find(columns, TICKERS)
    stored = PartRows(columns, cell, ())
    fast, slow = (
        matcher.match(changes, (), stored),
        matcher.match(changes, (), stored, wants_all=True),
    )
    assert summarize(fast) == summarize(slow)
    if alteration == "nothing":
        assert sorted(fast.stored.tolist()) == list(range(len(rows)))
        assert not (fast.rows)
        assert not (fast.differences)
        assert not (fast.surplus)
        assert not (fast.foreign)
