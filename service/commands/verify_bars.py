"""The part of `signals verify` that recomputes served rows from the customer's own bars."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compute.bars import DAY_S
from compute.indicators.registry import INDICATORS
from compute.own_bars.comparison import (
    Difference,
    Period,
    ServedRow,
    compare_asset,
    parse_served_row,
)
from compute.own_bars.recompute import OwnAsset, recompute_asset
from compute.sources.files import FilesSource
from compute.universe import Universe, load_universe
from verifier.errors import VerifyError
from verifier.feed import Feed
from verifier.report import Report
from verifier.times import parse_served_time

ALWAYS_OPEN = "24x7"
INDICATORS_BY_ID = {indicator.id: indicator for indicator in INDICATORS}


@dataclass(frozen=True)
class OwnBars:
    """A folder of bars, and the closes (epoch ms) of the first and last bar that count, if any."""

    folder: Path
    start: int | None
    end: int | None

    def find_period(self, feed: Feed) -> Period:
        """Return the closes (epoch s) for which both the feed and the bars can have rows."""
        since, as_of = (int(at.timestamp()) for at in (parse_served_time(feed.since), feed.as_of))
        start = since if self.start is None else max(since, self.start // 1000)
        end = as_of if self.end is None else min(as_of, self.end // 1000)
        return Period(start, end, as_of - DAY_S)


async def compare_own_bars(
    own: OwnBars, universe_file: Path | None, feed: Feed, report: Report
) -> None:
    """Recompute the rows of the feed from a folder of bars, and add the result to the report.

    SourceError if the folder cannot be read.
    """
    universe = load_universe(universe_file)
    served = _group_by_ticker(feed.rows)
    period = own.find_period(feed)
    source = FilesSource(own.folder, universe)
    for ticker in source.list_tickers():
        asset = await _recompute(ticker, source, universe)
        compared = compare_asset(
            asset,
            served.pop(ticker, []),
            period,
            INDICATORS_BY_ID,
            has_sessions=universe.by_ticker[ticker].session != ALWAYS_OPEN,
        )
        report.checked["rows as your bars give them"] += compared.equal_count
        _report_differences(compared.differences, report)
    if others := sum(map(len, served.values())):
        report.notes.append(f"{others} rows are of assets without bars in {own.folder}")


async def _recompute(ticker: str, source: FilesSource, universe: Universe) -> OwnAsset:
    end, native = source.get_end(ticker), source.get_native_timeframe(ticker)
    assert end is not None
    assert native is not None
    fetched = await source.fetch(ticker, -1, end)
    return recompute_asset(ticker, native, fetched.bars, fetched.funding, universe, INDICATORS)


def _report_differences(differences: Iterable[Difference], report: Report) -> None:
    """Add a finding for a difference without a cause; with one, the row is only not verified."""
    for one in differences:
        if one.causes:
            report.obstacles.append(f"{one.text}: {'; '.join(one.causes)}")
        else:
            report.findings.append(f"{one.text}: nothing in your bars explains it")


def _group_by_ticker(rows: Iterable[dict[str, Any]]) -> dict[str, list[ServedRow]]:
    groups: dict[str, list[ServedRow]] = {}
    for row in rows:
        try:
            served = parse_served_row(row)
        except (ValueError, TypeError, KeyError):
            raise VerifyError(f"the row {row['id']!r} is none that bars can give") from None
        groups.setdefault(served.key.ticker, []).append(served)
    return groups
