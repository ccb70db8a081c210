"""Measure how the indicators behave on recorded bars: `python -m tools.behavior FOLDER [--write]`.

The service's own code reads the folder and steps its bars. The figures describe readings, and no
figure is a return. `--write` updates the blocks of docs/behavior.md.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from itertools import combinations, groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compute.alerts.alert_pipeline import Alert, AlertPipeline
from compute.alerts.engines import CLOSE, NOTHING, AlertEngine, BarWithReading
from compute.bar_buffer import BarBuffer
from compute.bars import DAY_S, Times
from compute.engine import Engine
from compute.indicators.contract import (
    BEARISH,
    BULLISH,
    NEUTRAL,
    NO_READING,
    WARMUP,
    Bar,
    Readings,
)
from compute.indicators.registry import INDICATORS
from compute.sources.files import FilesSource
from compute.sources.source import SourceError
from compute.stepper import Cell, DueBars, Stepper
from compute.universe import Universe, load_universe
from schemas.operator_error import OperatorError
from schemas.vocabulary import (
    ACTION_DIRECTIONS,
    DIRECTION_CODES,
    ENGINE_KEYS,
    LOGGED_IDS,
    AssetClass,
    Timeframe,
)
from tools.generate_docs import BLOCK_PATTERN, ROOT

PAGE = ROOT / "docs" / "behavior.md"
NAMES = [f"`{indicator.id}`" for indicator in INDICATORS]
IS_LOGGED = np.array([indicator.id in LOGGED_IDS for indicator in INDICATORS])
MIN_READINGS = 2
MIN_AGREE, MANY_AGREE = 3, 5
NONE = "-"

Figures = NDArray[np.float64]


class RecordedAsset(NamedTuple):
    """The bars of an asset as recorded; times are epoch seconds."""

    ticker: str
    asset_class: AssetClass
    timeframe: Timeframe
    bars: int
    settlements: int
    starts_at: int
    ends_at: int


class History(NamedTuple):
    """The bars of one asset and timeframe that have readings, oldest first.

    `readings` has shape (bars, indicators). So has `differs`, which says whether the published
    alerts imply another position than the engine holds; None if no alert engine follows the asset.
    """

    asset_class: AssetClass
    timeframe: Timeframe
    close_time: Times
    readings: Readings
    differs: NDArray[np.bool_] | None


class Group(NamedTuple):
    """The histories of one asset class and timeframe, at least one."""

    asset_class: AssetClass
    timeframe: Timeframe
    histories: Sequence[History]

    @property
    def title(self) -> str:
        """The head of the group's column."""
        return f"{self.asset_class} {self.timeframe}"

    @property
    def readings(self) -> Readings:
        """The readings of all histories, shape (bars, indicators)."""
        return np.concatenate([history.readings for history in self.histories])

    @property
    def differs(self) -> NDArray[np.bool_]:
        """`differs` of all histories that alert engines follow; without any, no rows."""
        followed = [history.differs for history in self.histories if history.differs is not None]
        return np.concatenate([np.empty((0, len(INDICATORS)), dtype=np.bool_), *followed])

    @property
    def days(self) -> float:
        """The days from the first to the last reading, summed over the assets."""
        return sum(int(h.close_time[-1] - h.close_time[0]) for h in self.histories) / DAY_S


Groups = Sequence[Group]


def main(arguments: Sequence[str] | None = None, page: Path = PAGE) -> int:
    """Measure a folder; print the figures as Markdown, or update the page with --write."""
    parser = argparse.ArgumentParser(prog="python -m tools.behavior", description=__doc__)
    parser.add_argument("folder", type=Path, help="recorded bars, as docs/sources.md describes")
    parser.add_argument("--universe", type=Path, help="another universe file than the packaged one")
    parser.add_argument("--write", action="store_true", help=f"update docs/{PAGE.name} instead")
    options = parser.parse_args(arguments)
    try:
        # The log of rejected rows goes to standard output, which is for the figures.
        with redirect_stdout(sys.stderr):
            blocks = asyncio.run(render_blocks(options.folder, load_universe(options.universe)))
    except OperatorError as error:
        print(error, file=sys.stderr)
        return 1
    if options.write:
        page.write_text(update_page(page.read_text(), blocks))
    else:
        print("\n".join(f"## {name}\n\n{block}" for name, block in blocks.items()), end="")
    return 0


def update_page(text: str, blocks: Mapping[str, str]) -> str:
    """Return a page with each generated block replaced by the one of its name."""
    return BLOCK_PATTERN.sub(lambda match: match[1] + blocks[match[2]] + match[3], text)


async def render_blocks(folder: Path, universe: Universe) -> dict[str, str]:
    """Return the blocks of the page by name, measured on a folder of bars."""
    assets, histories = await read_folder(folder, universe)
    groups = group_histories(histories)
    renderers: dict[str, Callable[[Groups], str]] = {
        "summary": render_summary,
        "sizes": render_sizes,
        "changes": render_changes,
        "shares": render_shares,
        "holds": render_holds,
        "votes": render_votes,
        "correlations": render_correlations,
        "positions": render_positions,
    }
    blocks = {name: render(groups) for name, render in renderers.items()}
    return {"assets": render_assets(assets), **blocks}


async def read_folder(
    folder: Path, universe: Universe
) -> tuple[list[RecordedAsset], list[History]]:
    """Read a folder of bars and step all of it; SourceError if it has no usable bars."""
    source = FilesSource(folder, universe)
    end = source.ends_at or 0
    native_timeframes = {
        ticker: native
        for ticker in sorted(universe.by_ticker)
        if (native := source.get_native_timeframe(ticker)) is not None
    }
    buffer = BarBuffer(
        native_timeframes, universe.end_time_by_ticker, universe.sunday_joining_tickers
    )
    assets = []
    for ticker, native in native_timeframes.items():
        fetched = await source.fetch(ticker, -1, end)
        buffer.add(ticker, fetched.bars, fetched.funding)
        if bars := len(fetched.bars):
            times = int(fetched.bars.open_time[0]), int(fetched.bars.close_time[-1])
            asset_class = universe.by_ticker[ticker].asset_class
            settlements = len(fetched.funding.rate)
            assets.append(RecordedAsset(ticker, asset_class, native, bars, settlements, *times))
    stepper = Stepper(list(native_timeframes), universe, INDICATORS)
    due = buffer.take_due(stepper.row_by_series, 0, end, {})
    histories = list(step_histories(stepper, universe, due, end))
    if not histories:
        raise SourceError(f"{folder}: no asset has the {WARMUP + MIN_READINGS} bars that it needs")
    return assets, histories


def step_histories(
    stepper: Stepper, universe: Universe, due: DueBars, end: int
) -> Iterator[History]:
    """Step all bars, run the alert engines up to the hour `end`, and yield each history."""
    readings = stepper.step(due)[1][:, : len(INDICATORS)]
    pipeline = AlertPipeline(stepper.row_by_series, universe, INDICATORS)
    alerts_by_cell: dict[Cell, list[Alert]] = {cell: [] for cell in pipeline.cells}
    for alert in pipeline.run(due, readings, end):
        alerts_by_cell[alert.cell].append(alert)
    ends = due.row.tolist(), due.first_index.tolist(), due.last_index.tolist()
    for row, first, last in zip(*ends, strict=True):
        part = slice(first, last + 1)
        (ticker, timeframe), close_time = stepper.series_keys[row], due.close_time[part]
        is_read = (readings[part] != NO_READING).all(axis=1)
        # Changes and days are counted between readings.
        if is_read.sum() < MIN_READINGS:
            continue
        differs = None
        if pipeline.is_followed((ticker, timeframe)):
            bar = Bar(*(column[part] for column in due.bar))
            cells = [Cell(ticker, timeframe, ENGINE_KEYS[i.id]) for i in INDICATORS]
            held = find_engine_positions(close_time, bar, readings[part])
            published = find_published_positions(close_time, [alerts_by_cell[c] for c in cells])
            differs = (held != published)[is_read]
        asset_class = universe.by_ticker[ticker].asset_class
        yield History(asset_class, timeframe, close_time[is_read], readings[part][is_read], differs)


def find_engine_positions(close_time: Times, bar: Bar, readings: Readings) -> Readings:
    """Return the position of each indicator's alert engine after each bar: +1, 0 or -1."""
    bars, engines = readings.shape
    high, low, close = (np.tile(column, engines) for column in (bar.high, bar.low, bar.close))
    columns = BarWithReading(high, low, close, readings.T.ravel())
    actions = Engine((AlertEngine(),), engines).step(
        np.arange(engines), np.full(engines, bars), columns
    )
    positions = []
    for fired in actions.reshape(engines, bars):
        is_fired = fired != NOTHING
        sides = np.where(fired == CLOSE, 0, fired)[is_fired]
        positions.append(_hold_positions(close_time[is_fired], sides, close_time))
    return np.stack(positions, axis=1)


def find_published_positions(close_time: Times, alerts: Sequence[Sequence[Alert]]) -> Readings:
    """Return the position that each indicator's published alerts imply after each bar."""
    positions = []
    for published in alerts:
        hours = np.array([alert.hour for alert in published], dtype=np.int64)
        codes = [DIRECTION_CODES[ACTION_DIRECTIONS[alert.action]] for alert in published]
        positions.append(_hold_positions(hours, np.array(codes, dtype=np.int8), close_time))
    return np.stack(positions, axis=1)


def _hold_positions(acted_at: Times, sides: Readings, close_time: Times) -> Readings:
    """Return the side of the last action at or before each close, 0 before the first action."""
    place = np.searchsorted(acted_at, close_time, side="right")
    return np.append(np.int8(0), sides)[place].astype(np.int8)


def group_histories(histories: Iterable[History]) -> list[Group]:
    """Return the groups by asset class, then by timeframe, shortest first."""

    def get_key(history: History) -> tuple[AssetClass, Timeframe]:
        return history.asset_class, history.timeframe

    # The stepper orders its sequences by timeframe, so a stable sort by class is enough.
    ordered = sorted(histories, key=lambda history: history.asset_class)
    return [Group(*key, list(chosen)) for key, chosen in groupby(ordered, get_key)]


def count_changes_per_day(group: Group) -> Figures:
    """Return the changes of reading per asset and day, one figure for each indicator."""
    changes = sum((np.diff(h.readings, axis=0) != 0).sum(axis=0) for h in group.histories)
    return np.asarray(changes / group.days)


def measure_shares(group: Group, reading: int) -> Figures:
    """Return the share of bars that have a reading, one figure for each indicator."""
    return np.asarray((group.readings == reading).mean(axis=0))


def find_median_hold(group: Group, indicator: int, *, is_neutral: bool) -> float:
    """Return the median number of bars from a change to the next one, NaN if there is none.

    Count neutral readings or all others. A reading whose start or end was not seen is left out.
    """
    holds: list[int] = []
    for history in group.histories:
        column = history.readings[:, indicator]
        changed_at = (np.flatnonzero(np.diff(column)) + 1).tolist()
        holds += [b - a for a, b in pairwise(changed_at) if (column[a] == NEUTRAL) == is_neutral]
    return float(np.median(holds)) if holds else np.nan


def correlate_votes(readings: Readings) -> Figures:
    """Return the correlations of the columns, NaN for a column that never changes."""
    centered = readings - readings.mean(axis=0)
    products = centered.T @ centered
    deviations = np.sqrt(np.diag(products))
    with np.errstate(invalid="ignore"):
        return np.asarray(products / np.outer(deviations, deviations))


def count_independent_votes(correlations: Figures) -> float:
    """Return the effective number of independent votes, between 1 and the number of votes.

    It is (sum of the eigenvalues)^2 / sum of the squared eigenvalues of the correlations, as in
    Bretherton et al. (1999). The first sum is the number of votes, and the second one the sum of
    the squared correlations.
    """
    return float(len(correlations) ** 2 / (correlations**2).sum())


def count_agreeing(readings: Readings) -> NDArray[np.int64]:
    """Return how many votes each bar has for the direction that has more of them."""
    sides = [(readings == side).sum(axis=1) for side in (BULLISH, BEARISH)]
    return np.asarray(np.maximum(*sides), dtype=np.int64)


def render_summary(groups: Groups) -> str:
    """Return the main figures of each asset class as a list of sentences."""
    by_class = groupby(groups, lambda group: group.asset_class)
    return "".join(
        f"- **{asset_class}**: {sentence}\n"
        for asset_class, chosen in by_class
        for sentence in _summarize_class(list(chosen))
    )


def _summarize_class(groups: Groups) -> Iterator[str]:
    rates = [float(count_changes_per_day(group)[IS_LOGGED].sum()) for group in groups]
    each = _join_by_timeframe(groups, rates, ".1f")
    yield f"The feed has {sum(rates):.1f} changes per asset and day: {each}."
    worth = [count_independent_votes(correlate_votes(group.readings)) for group in groups]
    yield f"The {len(INDICATORS)} votes are worth {_format_range(worth, '.1f')} independent votes."
    agreeing = [count_agreeing(group.readings) for group in groups]
    many = _format_range([float((count >= MANY_AGREE).mean()) for count in agreeing], ".0%")
    yield (
        f"{MANY_AGREE} or more votes have the same direction on {many} of bars, and never more "
        f"than {max(int(count.max()) for count in agreeing)}."
    )
    followed = [group for group in groups if len(group.differs)]
    if followed:
        shares = np.array([group.differs.mean(axis=0) for group in followed])
        most = int(shares.max(axis=0).argmax())
        each = _join_by_timeframe(followed, shares[:, most].tolist(), ".0%")
        yield (
            "The published alerts imply another position than the engine holds most often for "
            f"{NAMES[most]} (share of bars: {each})."
        )


def _join_by_timeframe(groups: Groups, figures: Iterable[float], spec: str) -> str:
    pairs = zip(figures, groups, strict=True)
    return ", ".join(
        f"{_format_figure(figure, spec)} on {group.timeframe}" for figure, group in pairs
    )


def render_assets(assets: Iterable[RecordedAsset]) -> str:
    """Return a row for each asset: what was recorded of it."""
    rows = (
        (
            *(a.ticker, a.asset_class, a.timeframe, f"{a.bars:,}"),
            f"{a.settlements:,}" if a.settlements else NONE,
            *(f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" for at in (a.starts_at, a.ends_at)),
        )
        for a in assets
    )
    return _render_table(("asset", "class", "bars of", "bars", "funding", "from", "until"), rows)


def render_sizes(groups: Groups) -> str:
    """Return how much was measured: the assets, bars and days that have readings."""
    rows = [
        ("assets", *(str(len(group.histories)) for group in groups)),
        ("bars with readings", *(f"{len(group.readings):,}" for group in groups)),
        ("days, summed over assets", *(f"{group.days:,.0f}" for group in groups)),
    ]
    return _render_table(("", *(group.title for group in groups)), rows)


def render_changes(groups: Groups) -> str:
    """Return changes per asset and day by indicator, and the sums of timeframes and of the feed."""
    titles: list[str] = []
    columns: list[Figures] = []
    for asset_class, chosen in groupby(groups, lambda group: group.asset_class):
        rates = {group.title: count_changes_per_day(group) for group in chosen}
        rates[f"{asset_class}, all"] = np.sum(list(rates.values()), axis=0)
        titles += rates
        columns += [np.append(rate, rate[IS_LOGGED].sum()) for rate in rates.values()]
    return _render_figures((*NAMES, "the feed"), titles, columns, ".2f")


def render_shares(groups: Groups) -> str:
    """Return the shares of bullish, neutral and bearish readings by indicator."""
    shares = [
        [measure_shares(group, reading) for reading in (BULLISH, NEUTRAL, BEARISH)]
        for group in groups
    ]
    rows = (
        (name, *(" / ".join(f"{share[at]:.0%}" for share in column) for column in shares))
        for at, name in enumerate(NAMES)
    )
    return _render_table(("", *(group.title for group in groups)), rows)


def render_holds(groups: Groups) -> str:
    """Return the median holds by indicator: of a direction, and of neutral."""
    rows = (
        (
            name,
            *(
                " / ".join(
                    _format_figure(find_median_hold(group, at, is_neutral=is_neutral), "g")
                    for is_neutral in (False, True)
                )
                for group in groups
            ),
        )
        for at, name in enumerate(NAMES)
    )
    return _render_table(("", *(group.title for group in groups)), rows)


def render_votes(groups: Groups) -> str:
    """Return the number of independent votes, and how many votes agree on how many bars."""
    titles = [group.title for group in groups]
    worth = [count_independent_votes(correlate_votes(group.readings)) for group in groups]
    rows = [("independent votes", *(_format_figure(figure, ".2f") for figure in worth))]
    agreeing = [count_agreeing(group.readings) for group in groups]
    votes = len(INDICATORS)
    for number in range(MIN_AGREE, votes + 1):
        shares = [float((count >= number).mean()) for count in agreeing]
        cells = (f"{share:.1%}" if share else "never" for share in shares)
        rows.append(
            (f"all {votes} agree" if number == votes else f"{number} or more agree", *cells)
        )
    return _render_table(("", *titles), rows)


def render_correlations(groups: Groups) -> str:
    """Return the correlation of each pair of votes."""
    pairs = list(combinations(range(len(INDICATORS)), 2))
    correlations = [correlate_votes(group.readings) for group in groups]
    columns = [[matrix[pair] for pair in pairs] for matrix in correlations]
    names = [f"{NAMES[a]}, {NAMES[b]}" for a, b in pairs]
    return _render_figures(names, [group.title for group in groups], columns, ".2f")


def render_positions(groups: Groups) -> str:
    """Return the shares of bars on which published and engine positions differ."""
    followed = [group for group in groups if len(group.differs)]
    shares = [(*group.differs.mean(axis=0), group.differs.mean()) for group in followed]
    rows = [("bars", *(f"{len(group.differs):,}" for group in followed))]
    for at, name in enumerate((*NAMES, "all")):
        rows.append((name, *(f"{share[at]:.1%}" for share in shares)))
    return _render_table(("", *(group.title for group in followed)), rows)


def _render_figures(
    names: Sequence[str],
    titles: Sequence[str],
    columns: Sequence[Sequence[float] | Figures],
    spec: str,
) -> str:
    """Return a table with a row for each name, and a column of figures for each title."""
    rows = (
        (name, *(_format_figure(column[at], spec) for column in columns))
        for at, name in enumerate(names)
    )
    return _render_table(("", *titles), rows)


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ("---", *("--:" for _ in head[1:])), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _format_figure(figure: float, spec: str) -> str:
    return NONE if np.isnan(figure) else f"{figure:{spec}}"


def _format_range(figures: Iterable[float], spec: str) -> str:
    """Format the least and the greatest figure, or the one figure that both round to."""
    known = [figure for figure in figures if not np.isnan(figure)]
    ends = dict.fromkeys(f"{end:{spec}}" for end in (min(known), max(known))) if known else [NONE]
    return " to ".join(ends)


if __name__ == "__main__":
    raise SystemExit(main())
