"""Changes as columns are read as the rows that they were made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.vocabulary import TIMEFRAMES
from store.change_table import ChangeTable
from store.market_rows import ChangeRow

pytestmark = pytest.mark.clause("store")

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
def test_rows_are_read_back_from_columns_one_by_one_and_in_slices(rows: list[ChangeRow]):
    table = ChangeTable.from_rows(rows)
    assert list(table) == rows
    assert [table[at] for at in range(len(rows))] == rows
    assert list(table[1:-1]) == rows[1:-1]
    assert list(table[-1:]) == rows[-1:]
    assert ChangeTable.from_rows(table) is table


@given(st.lists(ROWS))
def test_the_newest_change_of_a_cell_is_its_last_one(rows: list[ChangeRow]):
    last = {
        (row.ticker, row.indicator, row.timeframe, row.epoch): at for at, row in enumerate(rows)
    }
    found = ChangeTable.from_rows(rows).find_newest()
    assert list(found) == [rows[at] for at in sorted(last.values())]


def test_an_index_beyond_the_end_is_refused():
    with pytest.raises(IndexError):
        ChangeTable.from_rows([])[0]
