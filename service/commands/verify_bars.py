"""The part of `signals verify` that recomputes served rows from the customer's own bars."""

from collections.abc import Iterable
from pathlib import Path

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
from compute.universe import load_universe
from verifier.canonical import Row
from verifier.feed import Feed
from verifier.report import Report
from verifier.times import parse_served_time

ALWAYS_OPEN = "24x7"
INDICATORS_BY_ID = {indicator.id: indicator for indicator in INDICATORS}


class OwnBars:
    """A folder of a customer's bars, and the closes (epoch ms) between which they count, if any."""

    def __init__(
        self, folder: Path, universe_file: Path | None, start: int | None, end: int | None
    ) -> None:
        """Read the folder; SourceError names the file and row that cannot be read."""
        self._folder = folder
        self._universe = load_universe(universe_file)
        self._source = FilesSource(folder, self._universe)
        self._start = start
        self._end = end

    async def compare(self, feed: Feed, report: Report) -> None:
        """Recompute the rows of the feed, and add the result to the report."""
        served = _group_by_ticker(feed.rows, report)
        period = self._find_period(feed)
        for ticker in self._source.list_tickers():
            compared = compare_asset(
                await self._recompute(ticker),
                served.pop(ticker, []),
                period,
                INDICATORS_BY_ID,
                has_sessions=self._universe.by_ticker[ticker].session != ALWAYS_OPEN,
            )
            report.checked["rows as your bars give them"] += compared.equal_count
            _report_differences(compared.differences, report)
        if others := sum(map(len, served.values())):
            report.notes.append(f"{others} rows are of assets without bars in {self._folder}")

    def _find_period(self, feed: Feed) -> Period:
        """Return the closes (epoch s) for which both the feed and the bars can have rows."""
        since, as_of = (int(at.timestamp()) for at in (parse_served_time(feed.since), feed.as_of))
        start = since if self._start is None else max(since, self._start // 1000)
        end = as_of if self._end is None else min(as_of, self._end // 1000)
        return Period(start, end, as_of - DAY_S)

    async def _recompute(self, ticker: str) -> OwnAsset:
        end, native = self._source.get_end(ticker), self._source.get_native_timeframe(ticker)
        assert end is not None
        assert native is not None
        fetched = await self._source.fetch(ticker, -1, end)
        return recompute_asset(
            ticker, native, fetched.bars, fetched.funding, self._universe, INDICATORS
        )


def _report_differences(differences: Iterable[Difference], report: Report) -> None:
    """Add a finding for a difference without a cause; with one, the row is only not verified."""
    for one in differences:
        if one.causes:
            report.obstacles.append(f"{one.text}: {'; '.join(one.causes)}")
        else:
            report.findings.append(f"{one.text}: nothing in your bars explains it")


def _group_by_ticker(rows: Iterable[Row], report: Report) -> dict[str, list[ServedRow]]:
    groups: dict[str, list[ServedRow]] = {}
    for row in rows:
        try:
            served = parse_served_row(row)
        except (ValueError, TypeError, KeyError):
            report.obstacles.append(f"{row['id']} is not a row that bars can give")
        else:
            groups.setdefault(served.key.ticker, []).append(served)
    return groups
