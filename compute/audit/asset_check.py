"""Checks from when on each asset's changes are published, and the commit that began it. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from compute.audit.report import Report
from compute.bars import Series
from compute.batch_rows import find_publish_from
from schemas.vocabulary import TIMEFRAME_DURATIONS_S
from store.digest import ContextRow
from store.market_rows import BarBlock, CommitContent


class _Beginning(NamedTuple):
    """The commit that first names an asset, and from when on it would publish its changes."""

    number: int
    publish_from: int


class AssetCheck:
    """Compares the stored assets with the commits that first name them."""

    def __init__(self) -> None:
        self._beginnings: Final[dict[str, _Beginning]] = {}

    def add_commit(self, number: int, start: int, content: CommitContent) -> None:
        """Take note of the assets of a commit; commits come in order.

        `start` is the first hour (epoch s) of the commit's runs.
        """
        # The last one of an asset's rows wins: those of a history that is built are the watermarks.
        backlogs = {row.ticker: False for row in content.funding}
        backlogs |= {block.ticker: find_first_close(block) < start for block in content.bars}
        backlogs |= {row.ticker: True for row in content.watermarks if row.history == "building"}
        for ticker, has_backlog in backlogs.items():
            if ticker not in self._beginnings:
                publish_from = find_publish_from(start, has_backlog=has_backlog)
                self._beginnings[ticker] = _Beginning(number, publish_from)

    def report_to(
        self, report: Report, assets: Iterable[ContextRow], feed_from: int | None
    ) -> None:
        """Report assets that say otherwise; `feed_from` is None if the source decides it.

        An asset's row has its kind, commit, ticker and `publish_from`.
        """
        rows = [(int(row[1] or 0), str(row[2]), int(row[3] or 0)) for row in assets]
        if feed_from is None:
            feed_from = self._find_feed_start({ticker: at for _, ticker, at in rows})
        for number, ticker, publish_from in rows:
            beginning = self._beginnings.get(ticker)
            if beginning is None:
                report.add_finding(f"assets: no commit has bars of {ticker}")
                continue
            expected = max(beginning.publish_from, feed_from)
            if publish_from != expected:
                report.add_finding(
                    f"assets: {ticker} publishes from {publish_from}, but its bars say {expected}"
                )
            if number not in (0, beginning.number):
                report.add_finding(
                    f"assets: {ticker} is of commit {number}, but begins in {beginning.number}"
                )

    def _find_feed_start(self, publish_from: Mapping[str, int]) -> int:
        """Return from when on the assets of the first commit publish, as most of them say."""
        first = [
            at
            for ticker, at in publish_from.items()
            if ticker in self._beginnings and self._beginnings[ticker].number == 1
        ]
        return Counter(first).most_common(1)[0][0] if first else 0


def find_first_close(block: BarBlock) -> int:
    """Return when the first bar of a block closes (epoch s)."""
    period_s = TIMEFRAME_DURATIONS_S[block.timeframe]
    return int(Series.from_columns(block.open_time[:1], block.values[:1], period_s).close_time[0])
