"""Blocks of bars are read back bit for bit; the database refuses overlapping ones.

Changes as columns are read as the rows that they were made of.
"""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from schemas.vocabulary import TIMEFRAMES
from store.change_table import ChangeTable
from store.market_rows import BarBlock, ChangeRow
from store.sql.market_store import MarketStore
from store.store_errors import DamagedError
from tests.support.row_builders import NOW, make_bar, make_batch, make_blocks, to_rows
from tests.support.store_homes import REFUSED, StoreHome, read_tables, run_sql

pytestmark = pytest.mark.clause("store")

EXTREMES = (0.0, -0.0, 5e-324, -2.2e-308, 1.7976931348623157e308, 0.1 + 0.2, 1 / 3)
HOURS = [make_bar("BTC", 3600 * hour) for hour in range(6)]
VALUES = "bars VALUES (1, 0, 0, {last}, {first}, 1, 9, ?)"
BYTES = bytes(48)


async def test_blocks_are_read_back_bit_for_bit(market: MarketStore) -> None:
    opens = np.array([-(2**62), -1, 0, 1, 2**40, 2**62, 2**63 - 1])
    values = np.column_stack([np.roll(EXTREMES, place) for place in range(5)])
    await market.commit(make_batch(bars=[BarBlock("BTC", "1d", opens, values)]))
    (held,) = (await market.commit_inputs(1)).bars
    (found,) = await market.bars(after=-(2**63))
    for block in (held, found):
        assert (block.ticker, block.timeframe, len(block)) == ("BTC", "1d", 7)
        assert (block.open_time.dtype, block.values.dtype) == (np.int64, np.float64)
        assert block.values.flags.c_contiguous
        assert block.open_time.tolist() == opens.tolist()
        assert block.values.tobytes() == values.tobytes()


async def test_a_block_of_foreign_byte_order_and_stride_is_stored_alike(
    market: MarketStore,
) -> None:
    (block,) = make_blocks(*HOURS)
    opens, values = block.open_time.astype(">i8"), np.asfortranarray(block.values.astype(">f8"))
    await market.commit(make_batch(bars=[BarBlock("BTC", "1h", opens[::2], values[::2])]))
    rows = to_rows(await market.bars())
    assert rows == HOURS[::2]
    assert [type(value) for value in rows[0]] == [str, str, int, *[float] * 5]


async def test_the_blocks_of_several_commits_are_joined_in_order(market: MarketStore) -> None:
    for step in range(3):
        eth = [make_bar("ETH", 7200 * step)] if step != 1 else []
        await market.commit(
            make_batch(NOW, bars=make_blocks(*HOURS[2 * step : 2 * step + 2], *eth))
        )
    btc, eth_block = await market.bars()
    assert to_rows([btc]) == HOURS
    assert [row.open_time for row in to_rows([eth_block])] == [0, 14400]
    assert to_rows((await market.commit_inputs(2)).bars) == HOURS[2:4]


@pytest.mark.parametrize("after", [-1, 0, 1, 3599, 3600, 7200, 10_800, 17_999, 18_000, 10**9])
@pytest.mark.sampled(4)
async def test_bars_after_a_time_begin_in_the_middle_of_a_block(
    market: MarketStore, after: int
) -> None:
    await market.commit(make_batch(bars=make_blocks(*HOURS[:4])))
    await market.commit(make_batch(bars=make_blocks(*HOURS[4:])))
    expected = [row for row in HOURS if row.open_time > after]
    assert to_rows(await market.bars("BTC", after)) == expected
    assert len(await market.bars(after=after)) == (1 if expected else 0)


@pytest.mark.clause("live")
async def test_a_new_revision_supersedes_the_old_one_which_can_still_be_read(
    market: MarketStore,
) -> None:
    await market.commit(make_batch(bars=make_blocks(*HOURS[:3], make_bar("ETH"))))
    assert await market.revisions() == {}
    anew = [row._replace(open=9.0) for row in HOURS[:4]]
    await market.commit(make_batch(bars=make_blocks(*anew, revision=1)))
    await market.commit(make_batch(bars=make_blocks(HOURS[4], revision=1)))
    assert await market.revisions() == {"BTC": 1}
    assert to_rows(await market.bars("BTC")) == [*anew, HOURS[4]]
    assert to_rows(await market.bars()) == [*anew, HOURS[4], make_bar("ETH")]
    assert to_rows(await market.bars("BTC", 3600)) == [*anew[2:], HOURS[4]]
    assert to_rows(await market.bars("BTC", revision=0)) == HOURS[:3]
    assert await market.bars("BTC", revision=2) == []
    (held,) = (await market.commit_inputs(2)).bars
    assert (held.revision, to_rows([held])) == (1, anew)


@pytest.mark.clause("live")
@pytest.mark.parametrize("generation", [0, 3, -1])
async def test_the_database_refuses_bars_of_a_superseded_or_skipped_revision(
    market: MarketStore, home: StoreHome, generation: int
) -> None:
    await market.commit(make_batch(bars=make_blocks(*HOURS[:3])))
    await market.commit(make_batch(bars=make_blocks(*HOURS[:3], revision=1)))
    before = await read_tables(home)
    attacks = [
        f"{attack} WHERE generation = {held}"
        for held in (0, 1)
        for attack in ("DELETE FROM bars", "UPDATE bars SET generation = 2")
    ]
    late = f"INSERT INTO bars VALUES (1, {generation}, 0, 90000, 90000, 1, 9, ?)"
    async with home.open_plain() as run:
        for sql, *values in ((late, BYTES), *((attack,) for attack in attacks)):
            with pytest.raises(REFUSED, match="append-only"):
                await run(sql, *values)
    assert await read_tables(home) == before


OUT_OF_ORDER = [
    ("3600", "3600"),
    ("0", "18000"),
    ("-3600", "99999"),
    ("-7200", "-3600"),
    ("18000", "21600"),
    ("'18000'", "'21600'"),
    ("18000.0", "21600.0"),
    ("21600", "18000"),
    ("21600", "0"),
    ("NULL", "21600"),
    ("21600", "NULL"),
]


async def test_the_database_refuses_a_block_that_is_not_later_than_the_stored_ones(
    market: MarketStore, home: StoreHome
) -> None:
    await market.commit(make_batch(bars=make_blocks(*HOURS[:3])))
    await market.commit(make_batch(bars=make_blocks(*HOURS[3:])))
    before = await read_tables(home)
    insert = f"{home.insert_sql} {VALUES}"
    async with home.open_plain(*home.relaxing_sql) as run:
        for first, last in OUT_OF_ORDER:
            with pytest.raises(REFUSED):
                await run(insert.format(first=first, last=last), BYTES)
        assert await read_tables(home) == before
        await run(insert.format(first=18_001, last=18_001), BYTES)


@pytest.mark.parametrize(
    ("values", "size"),
    [("0, 9, 9, 0, 9", 0), ("0, 9, 9, 1, 9", 47), ("3, 9, 9, 1, 9", 48)],
    ids=["no bars", "a byte too few", "no such timeframe"],
)
async def test_the_database_refuses_a_block_of_the_wrong_form(
    market: MarketStore, home: StoreHome, values: str, size: int
) -> None:
    await market.commit(make_batch(bars=make_blocks(make_bar())))
    with pytest.raises(REFUSED, match=r"(?i)check"):
        await run_sql(home, f"INSERT INTO bars VALUES (1, 0, {values}, ?)", bytes(size))


async def test_damaged_bytes_are_reported_in_one_line(market: MarketStore, home: StoreHome) -> None:
    await market.commit(make_batch(bars=make_blocks(*HOURS)))
    await run_sql(home, "INSERT INTO bars VALUES (1, 0, 0, 90000, 90000, 1, 1, ?)", BYTES)
    for reading in (market.bars("BTC"), market.commit_inputs(1)):
        with pytest.raises(DamagedError) as refusal:
            await reading
        assert str(refusal.value) == "commit 1 holds damaged bars of BTC"
    assert to_rows(await market.bars("ETH")) == []


READINGS = st.sampled_from([-1, 0, 1])
ROWS = st.builds(
    ChangeRow,
    st.integers(0, 2**53),
    st.sampled_from(["A", "AB", "BRK.B", "é"]),
    st.sampled_from(["enzo", "llnr", "dexter"]),
    st.sampled_from(TIMEFRAMES),
    st.integers(0, 2**40),
    st.integers(0, 2),
    st.none() | READINGS,
    READINGS,
    st.floats(allow_nan=False),
    st.booleans(),
)


@given(st.lists(ROWS))
def test_rows_are_read_back_from_columns_whole_and_in_slices(rows: list[ChangeRow]):
    table = ChangeTable.from_rows(rows)
    assert (list(table), len(table), list(table.select(slice(1, -1)))) == (
        rows,
        len(rows),
        rows[1:-1],
    )
    assert ChangeTable.from_rows(table) is table


@given(st.lists(ROWS))
def test_the_newest_change_of_a_cell_is_its_last_one(rows: list[ChangeRow]):
    last = {
        (row.ticker, row.indicator, row.timeframe, row.epoch): at for at, row in enumerate(rows)
    }
    found = ChangeTable.from_rows(rows).find_newest()
    assert list(found) == [rows[at] for at in sorted(last.values())]
