"""Blocks of assets, whoever computes them, give what one computation of all gives."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from compute import state_loader as restore_module
from compute.audit import history as passes_module
from compute.audit.report import Report
from compute.executor import Crews, Here, each, here, in_blocks
from compute.universe import Universe
from tests.compute.audit.test_audit import PRUNED, TAMPERED, Databases, alter, copy, databases
from tests.compute.crews import Elsewhere, elsewhere, raised
from tests.support.small_market import DENSE, END, HOUR_S, audit_store, replay_bars

__all__ = ["databases"]

pytestmark = pytest.mark.clause("scaling")

SAMPLE = {
    "a change's price",
    "a carry's byte",
    "a base row deleted",
}


@pytest.fixture(autouse=True)
def use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small stores too fall into several blocks and several stretches of passes."""
    monkeypatch.setattr(restore_module, "MAX_REBUILD_ASSETS", 2)
    monkeypatch.setattr(passes_module, "BARS_PER_READ", 300)


@pytest.mark.parametrize(
    ("count", "most", "hands", "sizes"),
    [
        (0, 4, 2, []),
        (3, 4, 1, [3]),
        (9, 4, 1, [3, 3, 3]),
        (9, 4, 2, [3, 3, 3]),
        (9, 100, 2, [4, 5]),
        (2, 100, 5, [1, 1]),
    ],
)
def test_items_are_split_evenly_in_their_order_with_a_block_for_each_hand(
    count: int, most: int, hands: int, sizes: list[int]
):
    blocks = in_blocks(range(count), most, hands)
    assert [len(block) for block in blocks] == sizes
    assert [item for block in blocks for item in block] == list(range(count))


@pytest.mark.parametrize("crew", [Here(), Elsewhere()], ids=["here", "elsewhere"])
async def test_results_come_in_the_order_of_blocks_that_are_drawn_as_needed(
    crew: Here | Elsewhere,
):
    drawn: list[int] = []

    async def blocks() -> AsyncIterator[int]:
        async for block in each([-3, 2, -1]):
            drawn.append(block)
            yield block

    ahead = [(result, len(drawn)) async for result in crew.map(abs, blocks())]
    assert ahead == [(3, 1), (2, 2), (1, 3)]


async def test_what_the_code_outgrew_is_rebuilt_the_same_elsewhere(
    tmp_path: Path, bars_folder: Path, universe: Universe
):
    stop = DENSE + 230 * HOUR_S
    before = await replay_bars(tmp_path / "here.db", bars_folder, universe, stop)
    copy(tmp_path / "here.db", tmp_path / "elsewhere.db")
    until = stop + 10 * HOUR_S
    own = await replay_bars(tmp_path / "here.db", bars_folder, universe, until, raised())
    other = await replay_bars(
        tmp_path / "elsewhere.db", bars_folder, universe, until, raised(), elsewhere
    )
    assert own == other
    assert len(own["epochs"]) > len(before["epochs"]) + 20


@pytest.mark.parametrize(
    "indicators",
    [
        pytest.param(None, id="of one version", marks=pytest.mark.prove),
        pytest.param(raised(), id="of two versions", marks=pytest.mark.prove),
    ],
)
async def test_an_audit_of_a_whole_market_reports_the_same_elsewhere(
    tmp_path: Path, bars_folder: Path, universe: Universe, indicators: None
):
    given = () if indicators is None else (indicators,)
    path = tmp_path / "market.db"
    await replay_bars(path, bars_folder, universe, END - 40 * HOUR_S)
    await replay_bars(path, bars_folder, universe, END, *given)
    report = await same(path, universe, *given)
    assert report.findings == []
    assert (sum(report.not_verifiable.values()) > 0) == (indicators is not None)


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=() if what in SAMPLE else pytest.mark.prove)
        for what in [*TAMPERED, *PRUNED]
    ],
)
def test_an_audit_of_an_altered_store_reports_the_same_elsewhere(
    what: str, databases: Databases, tmp_path: Path, universe: Universe
):
    of, altered = (databases.fresh, TAMPERED) if what in TAMPERED else (databases.pruned, PRUNED)
    path = copy(of, tmp_path / "copy.db")
    assert alter(path, altered[what][0]) > 0
    assert asyncio.run(same(path, universe)).findings


async def same(path: Path, universe: Universe, *indicators: object) -> Report:
    """Audit here and elsewhere; return the report of both."""

    async def report(crews: Crews) -> Report:
        given = {"indicators": indicators[0]} if indicators else {}
        return await audit_store(path, universe, crews=crews, **given)

    own, other = await report(here), await report(elsewhere)
    assert own == other
    assert list(own.checked) == list(other.checked)
    assert list(own.not_verifiable) == list(other.not_verifiable)
    return own
