"""The letter matrix has the same readings as the full view, in a tenth of its size."""

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.tools.get_state import get_state
from schemas.state import StateQuery
from schemas.vocabulary import INDICATOR_IDS, TIMEFRAMES, format_instant
from serving.context import Context
from serving.snapshot_cache import SnapshotCache
from store.sql.market_store import MarketStore
from store.sqlite.market_store import open_sqlite_market
from tests.support.bad_inputs import STATE
from tests.support.example_market import (
    HOUR_MS,
    NOON,
    fill_full_universe,
    make_coverage,
    seed_market,
)

pytestmark = pytest.mark.clause("answers")

PROMISED = 11_000  # Characters, as the tool's description promises.
SAID = {"U": "bullish", "D": "bearish", "N": "neutral"}
Cells = dict[tuple[str, str, str], str]

FILTERS = [
    {name: value for name, value in zip(StateQuery.model_fields, chosen, strict=False) if value}
    for chosen in itertools.product(
        (None, "BTC", "MATIC,XAU,DARK"),
        (None, "crypto", "stock", "metal"),
        (None, *TIMEFRAMES),
        (None, *INDICATOR_IDS),
        (None, *SAID.values()),
    )
]


def parsed(matrix: dict[str, Any]) -> Cells:
    """Parse a matrix using only its legend and the field descriptions."""
    cells: Cells = {}
    for row in filter(None, matrix["rows"].split(";")):
        ticker, *words = row.split(" ")
        for timeframe, word in zip(matrix["timeframes"], words, strict=True):
            assert len(word) in {len(matrix["indicators"]) - has for has in (0, 1)}
            for indicator, letter in zip(matrix["indicators"], word, strict=False):
                if letter != ".":
                    cells[ticker, indicator, timeframe] = matrix["legend"][letter]
    return cells


def listed(answer: dict[str, Any]) -> Cells:
    return {
        (asset["ticker"], indicator, timeframe): reading
        for asset in answer["assets"]
        for indicator, cells in asset["signals"].items()
        for timeframe, reading in cells.items()
    }


def context_of(store: MarketStore) -> Context:
    return Context(SnapshotCache(store), "http://x", "http://x", lambda: NOON + HOUR_MS, None, 1)


async def both_views(context: Context, **filters: Any) -> list[dict[str, Any]]:
    """Return the serialized results of the handler in both views."""
    answers = []
    for view in ("full", "board"):
        query = StateQuery.model_validate({**filters, "view": view})
        answers.append(json.loads((await get_state(query, context)).model_dump_json()))
    return answers


def check_same(full: dict[str, Any], board: dict[str, Any]) -> None:
    """Require that a matrix equals the full view of the same query, and all other fields too."""
    matrix = board.pop("board")
    assert parsed(matrix) == listed(full)
    rows = [row.split(" ")[0] for row in filter(None, matrix["rows"].split(";"))]
    assert rows == [asset["ticker"] for asset in full["assets"]]
    assert board == full | {"assets": []}


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[MarketStore]:
    store = await open_sqlite_market(tmp_path / "market.db")
    await seed_market(store, make_coverage())
    yield store
    await store.close()


@pytest.fixture(scope="module")
def full_board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full") / "market.db"


@pytest.fixture
async def whole(full_board: Path) -> AsyncIterator[MarketStore]:
    """A service with the whole universe, filled once."""
    store = await open_sqlite_market(full_board)
    if not await store.commits():
        await fill_full_universe(store)
    yield store
    await store.close()


@pytest.mark.clause("2.4.2", "2.4.10")
async def test_every_filter_gives_the_same_readings_in_both_views(small):
    context = context_of(small)
    for filters in FILTERS:
        check_same(*await both_views(context, **filters))


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"asset_class": "metal"},
        {"timeframe": "4h"},
        {"indicator": "enzo"},
        {"direction": "neutral"},
        {"asset_class": "stock", "timeframe": "1d", "indicator": "llnr", "direction": "bullish"},
        {"as_of": format_instant(NOON - 9 * 24 * HOUR_MS)},
    ],
    ids=lambda filters: "+".join(filters) or "none",
)
@pytest.mark.prove
async def test_the_whole_universe_reads_the_same_in_both_views(whole, filters):
    full, board = await both_views(context_of(whole), **filters)
    assert len(full["assets"]) > 3
    check_same(full, board)


@pytest.mark.clause("1.21")
async def test_the_whole_universe_is_as_short_as_promised(whole):
    context = context_of(whole)
    for as_of in (None, format_instant(NOON), format_instant(NOON - 20 * 24 * HOUR_MS)):
        full, board = await both_views(context, as_of=as_of)
        assert full["counts"]["assets"] == 252
        cells = [cell for cell in listed(full) if cell[0] != "MATIC" and cell[1] != "dexter"]
        assert len(cells) == 5271
        assert len(json.dumps(board, separators=(",", ":"))) < PROMISED


async def test_a_row_shows_dexter_only_if_the_asset_has_it(served, transport):
    board = (await served.fetch_answer(transport, STATE, view="board"))["board"]
    assert board["indicators"] == [*INDICATOR_IDS, "dexter"]
    assert board["timeframes"] == ["1h", "4h", "1d"]
    rows = dict(row.split(" ", 1) for row in board["rows"].split(";"))
    # Ceres is neutral except for BTC on 4h; enzo, llnr, perpkit and dexter follow it.
    assert rows == {
        "BTC": "DUUNUUDU UUUUUUUU UUUNUUUU",
        "ETH": "UUUNDUU UUUNUUU UUUNUUU",
        "MATIC": "UUUNUUUU UUUNUUUU UUUNUUUU",
        "NVDA": "DDDNDDD DDDNDDD DDDNDND",
        "XAU": "....... ....... DDDNDDD",
    }
    assert board["legend"] == {**SAID, ".": "no reading, or excluded by a filter"}


async def test_a_board_without_matches_has_no_row_and_says_why(served, transport):
    answer = await served.fetch_answer(
        transport, STATE, view="board", asset_class="metal", timeframe="1h"
    )
    assert (answer["board"]["rows"], answer["assets"]) == ("", [])
    assert answer["counts"] == {"assets": 0, "readings": 0}
    reason = "This deployment has no 1h readings of any metal asset, only 1d."
    assert f"No reading matches these filters now: {reason}" in answer["meta"]["note"]


async def test_each_view_leaves_the_field_of_the_other_empty(served, transport):
    full = await served.fetch_answer(transport, STATE, view="full")
    assert full == await served.fetch_answer(transport, STATE)
    assert "board" not in full
    board = await served.fetch_answer(transport, STATE, view="board")
    assert board.keys() - full.keys() == {"board"}
    check_same(full, board)


async def test_another_view_is_refused_and_both_are_named(served, transport):
    status, error = await served.fetch_refusal(transport, STATE, view="compact")
    assert (status, error["error"]) == (400, "invalid_parameter")
    assert "view" in error["message"]
    assert "full, board" in error["message"]
