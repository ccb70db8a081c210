"""The digest chain compared to bytes written out by hand."""

import struct
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, strategies as st

from schemas.vocabulary import TIMEFRAMES
from store import digest
from store.market_rows import ChangeRow, FundingRow, SourceRow, WatermarkRow
from store.sql.market_store import MarketStore
from tests.store.sql.test_market_reads import make_coverage
from tests.store.test_bar_blocks import ROWS as CHANGES
from tests.support.row_builders import (
    NOW,
    BarRow,
    list_commits,
    make_alert,
    make_bar,
    make_batch,
    make_blocks,
    make_change,
    make_epoch,
    make_full_batch,
)

pytestmark = pytest.mark.clause("audit")

BAR_BYTES = b"bBTC\x001h\x00" + struct.pack(">qddddd", 3600, 1.5, 2.5, 0.1 + 0.2, 2.25, 1e6)
FUNDING_BYTES = b"fBTC\x00" + struct.pack(">qd", 3600, -0.0001)


LATE = WatermarkRow("ETH", 7, late=("1h",))
LATE_BYTES = b"wETH\x00" + struct.pack(">q?", 7, True)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (
            (make_blocks(make_bar("BTC", 3600)), [FundingRow("BTC", 3600, -0.0001)]),
            BAR_BYTES + FUNDING_BYTES,
        ),
        (
            (make_blocks(make_bar("BTC", 3600), revision=12), []),
            b"g12\0" + BAR_BYTES.removeprefix(b"b"),
        ),
        (
            (make_blocks(make_bar("BTC", 3600)), [], [LATE, WatermarkRow("BTC", -1)]),
            BAR_BYTES + b"wBTC\x00" + struct.pack(">q?", -1, False) + LATE_BYTES,
        ),
        (
            (
                *(make_blocks(make_bar("BTC", 3600)), [], [LATE]),
                [SourceRow("ETH", 0, "okx ETH/USDT", 3), SourceRow("BTC", 12, "recorded", 3)],
            ),
            BAR_BYTES + LATE_BYTES + b"sBTC\x0012\x00recorded\x00sETH\x000\x00okx ETH/USDT\x00",
        ),
        (
            (
                *([], []),
                [
                    WatermarkRow("ETH", 7, history="building"),
                    WatermarkRow("BTC", -1, history="built"),
                ],
            ),
            b"h2\x00BTC\x00"
            + struct.pack(">q?", -1, False)
            + b"h1\x00ETH\x00"
            + struct.pack(">q?", 7, False),
        ),
    ],
    ids=[
        "bars before funding",
        "a revision of restated bars",
        "watermarks by ticker",
        "sources by ticker",
        "histories that are built",
    ],
)
def test_the_inputs_of_a_commit_are_digested_in_one_order(
    inputs: tuple[list[Any], ...], expected: bytes
) -> None:
    assert digest.digest_bars(*inputs) == sha256(expected).digest()


def test_a_first_reading_differs_from_a_change_from_neutral() -> None:
    first = make_change(1000, close_time=5)
    head = b"c" + struct.pack(">q", 1000) + b"BTC\x00enzo\x001h\x00"
    expected = head + struct.pack(">qqbbd?", 5, 0, 127, 1, 0.3, True)
    assert digest.digest_changes([first]) == sha256(expected).digest()
    assert digest.digest_changes([first._replace(before=0)]) != sha256(expected).digest()


def test_the_sign_of_zero_does_not_reach_the_digest() -> None:
    negative, positive = (FundingRow("BTC", 1, zero) for zero in (-0.0, 0.0))
    assert digest.digest_bars([], [negative]) == digest.digest_bars([], [positive])
    fields = ("open", "high", "low", "close", "volume")
    low, high = (make_bar()._replace(**dict.fromkeys(fields, zero)) for zero in (-0.0, 0.0))
    assert digest.digest_bars(make_blocks(low), []) == digest.digest_bars(make_blocks(high), [])
    below, above = (make_change(1)._replace(price=zero) for zero in (-0.0, 0.0))
    assert digest.digest_changes([below]) == digest.digest_changes([above])


def encode_bar(row: BarRow) -> bytes:
    ticker, timeframe, open_time, *values = row
    head = b"b" + ticker.encode() + b"\0" + timeframe.encode() + b"\0"
    return head + struct.pack(">q5d", open_time, *(value + 0.0 for value in values))


@given(
    st.lists(
        st.builds(
            BarRow,
            st.sampled_from(["A", "AB", "BRK.B", "é"]),
            st.sampled_from(TIMEFRAMES),
            st.integers(0, 9),
            *[st.floats(allow_nan=False)] * 5,
        ),
        unique_by=lambda row: row[:3],
    ),
    st.randoms(),
)
def test_the_order_in_which_bars_arrive_does_not_matter(rows, random) -> None:
    given = make_blocks(*sorted(rows))
    expected = b"".join(map(encode_bar, sorted(rows)))
    assert digest.digest_bars(random.sample(given, len(given)), []) == sha256(expected).digest()


def encode_change(row: ChangeRow) -> bytes:
    before = 127 if row.before is None else row.before
    head = b"c" + struct.pack(">q", row.created_at)
    cell = f"{row.ticker}\0{row.indicator}\0{row.timeframe}\0".encode()
    rest = row.close_time, row.epoch, before, row.after, row.price + 0.0, row.published
    return head + cell + struct.pack(">qqbbd?", *rest)


@given(st.lists(CHANGES, unique_by=lambda row: row.created_at), st.integers(1, 4))
def test_changes_are_digested_row_by_row_in_the_order_of_their_times(rows, at_a_time) -> None:
    expected = b"".join(map(encode_change, sorted(rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "_ROWS_PER_UPDATE", at_a_time)
        assert digest.digest_changes(rows) == sha256(expected).digest()


async def test_the_stored_chain_is_the_one_computed_by_hand(market: MarketStore) -> None:
    funding = [FundingRow("BTC", 3600, -0.0001)]
    await market.commit(make_batch(NOW, bars=make_blocks(make_bar("BTC", 3600)), funding=funding))
    await market.commit(make_batch(NOW + 1))
    nothing = sha256(b"").digest()
    bars = sha256(BAR_BYTES + FUNDING_BYTES).digest()
    contexts = [
        sha256(b'["asset",1,"BTC",0]\n["pass",1,%d,null,null,null]\n' % NOW).digest(),
        sha256(b'["pass",2,%d,null,null,null]\n' % (NOW + 1)).digest(),
    ]
    first = sha256(bytes(32) + struct.pack(">q", NOW) + bars + nothing + b"x" + contexts[0])
    second = sha256(
        first.digest() + struct.pack(">q", NOW + 1) + nothing + nothing + b"x" + contexts[1]
    )
    one, two = await list_commits(market)
    assert (one.number, one.bars_digest, one.changes_digest) == (1, bars, nothing)
    assert [one.context_digest, two.context_digest] == contexts
    assert (one.digest, two.digest) == (first.digest(), second.digest())


async def test_the_context_of_a_commit_has_every_row_that_no_other_digest_covers(
    market: MarketStore,
) -> None:
    await market.adopt_source("simulated", NOW)
    await market.commit(make_full_batch(NOW))
    batch = make_full_batch(NOW + 1, step=1)
    await market.commit(replace(batch, written_at=NOW + 9, epochs=[make_epoch("ÉTÉ", 1)]))
    one, two = await list_commits(market)
    assert (
        one.context_digest
        == sha256(
            b'["asset",1,"BTC",5]\n["asset",1,"ETH",7]\n'
            b'["epoch",1,"BTC",1,2,0,2,1,7200,"layout"]\n'
            b'["fact","source","simulated"]\n["fact","started_at","%d"]\n'
            b'["missing",1,"ETH",0,1,0,7200]\n'
            b'["pass",1,%d,null,%d,%d]\n'
            b'["source",1,"BTC",0,"recorded"]\n["source",1,"ETH",0,"recorded"]\n'
            % (NOW, NOW, NOW, NOW + 3)
        ).digest()
    )
    assert (
        two.context_digest
        == sha256(
            b'["asset",2,"\\u00c9T\\u00c9",0]\n'
            b'["epoch",2,"\\u00c9T\\u00c9",1,2,1,2,1,7200,"layout"]\n'
            b'["missing",2,"ETH",0,2,3600,10800]\n'
            b'["pass",2,%d,%d,%d,%d]\n' % (NOW + 1, NOW + 9, NOW + 10, NOW + 13)
        ).digest()
    )


async def test_a_published_coverage_follows_the_last_commit(market: MarketStore) -> None:
    first = make_coverage(NOW)
    await market.publish_coverage(first)
    (row,) = (await market.audit_reads.load_market()).coverage
    document = sha256(first.model_dump_json().encode()).digest()
    assert row.digest == sha256(bytes(32) + document).digest()
    await market.commit(make_batch(NOW))
    await market.publish_coverage(first)
    (commit,) = await list_commits(market)
    (row,) = (await market.audit_reads.load_market()).coverage
    assert row.digest == sha256(commit.digest + document).digest()


OTHER_FIELDS = {
    **{"created_at": 1001, "ticker": "BT", "indicator": "llnr", "timeframe": "1d", "epoch": 1},
    **{"close_time": 2, "price": 0.30000000000000004},
}


@pytest.mark.parametrize(
    ("digest_rows", "row", "others"),
    [
        (digest.digest_changes, make_change(1000), {"before": -1, "after": 0, "published": False}),
        (digest.digest_alerts, make_alert(1000), {"action": "BUY"}),
    ],
    ids=["change", "alert"],
)
def test_a_change_of_any_field_of_a_row_changes_the_digest(digest_rows, row, others) -> None:
    changed = [row._replace(**{name: value}) for name, value in (OTHER_FIELDS | others).items()]
    assert {*OTHER_FIELDS, *others} == {*row._fields}
    assert len({digest_rows([one]) for one in (row, *changed)}) == len(row._fields) + 1


def test_alerts_have_their_own_digest_and_none_without_alerts() -> None:
    row = make_alert(1000, close_time=5, epoch=2)
    head = b"a" + struct.pack(">q", 1000) + b"BTC\x00perpkit\x004h\x00"
    expected = head + b"LONG\x00" + struct.pack(">qqd", 5, 2, 0.3)
    assert digest.digest_alerts([row]) == sha256(expected).digest()
    assert digest.digest_alerts([]) is None
    parts, context = (bytes(32), 7, bytes(32), bytes(32)), b"c" * 32
    head = bytes(32) + struct.pack(">q", 7) + bytes(64)
    for alerts in (None, b"a" * 32):
        expected = head + (alerts or b"") + b"x" + context
        assert digest.digest_commit(*parts, alerts, context) == sha256(expected).digest()
