"""Splits the assets of a universe into the blocks that an audit's tasks work on."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compute.alerts.alert_pipeline import list_followed_series
from compute.audit.block_audit import AuditBlock
from compute.audit.epochs import Epochs
from compute.audit.feed_rows import CellNumbers
from compute.audit.recompute import BlockStepper
from compute.audit.row_matcher import RowMatcher
from compute.executor import split_into_blocks
from compute.indicators.contract import Indicator
from compute.stepper import Cell, SeriesKey, list_series_keys, list_stored_keys
from compute.universe import Universe
from schemas.vocabulary import ENGINE_KEYS, Timeframe

MAX_BLOCK_ASSETS = 512


class AuditedAssets(NamedTuple):
    """The blocks of assets, each asset's block, and the sequences that alert engines follow.

    `cell_numbers` finds block and cell of stored changes; `engines` are in the order of the numbers
    that row matchers give them.
    """

    blocks: list[AuditBlock]
    block_by_ticker: dict[str, int]
    cell_numbers: CellNumbers
    followed_series: frozenset[SeriesKey]
    engines: Sequence[Cell]


def split_assets(
    universe: Universe,
    indicators: Sequence[Indicator],
    native_timeframes: Mapping[str, Timeframe],
    epochs: Epochs,
    publish_from: Mapping[str, int],
    parallelism: int,
) -> AuditedAssets:
    """Split the assets into blocks for at least `parallelism` tasks."""
    # Cells and engines keep their numbers among those of all assets: by these the leader puts the
    # rows of all blocks in feed order.
    tickers = sorted(universe.by_ticker)
    series_keys = list_series_keys(tickers)
    keys = list_stored_keys(indicators)
    cells = (Cell(*series_key, key) for series_key in series_keys for key in keys)
    cell_numbers = {cell: number for number, cell in enumerate(cells)}
    followed_series = list_followed_series(series_keys, universe)
    engines = [Cell(*key, ENGINE_KEYS[i.id]) for key in followed_series for i in indicators]
    blocks: list[AuditBlock] = []
    block_by_ticker: dict[str, int] = {}
    split = split_into_blocks(tickers, MAX_BLOCK_ASSETS, parallelism)
    for block_tickers in split:
        block_by_ticker |= dict.fromkeys(block_tickers, len(blocks))
        block_epochs = epochs.select(block_tickers)
        stepper = BlockStepper(
            universe, indicators, native_timeframes, block_epochs, publish_from, block_tickers
        )
        matcher = RowMatcher(
            {cell: cell_numbers[cell] for cell in stepper.cells},
            {c: number for number, c in enumerate(engines) if c.ticker in block_tickers},
            block_epochs,
            publish_from,
        )
        blocks.append(AuditBlock(stepper, matcher, block_epochs))
    return AuditedAssets(
        blocks, block_by_ticker, CellNumbers(split, keys), frozenset(followed_series), engines
    )
