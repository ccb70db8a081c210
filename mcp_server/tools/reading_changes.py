"""Since when the readings of a result have held, the prices then, and the last bars."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.confluence import ConfluenceQuery
from schemas.state import LastBar, ReadingChange, StateQuery
from schemas.vocabulary import StoredKey, Timeframe, format_instant
from serving.arguments import ArgumentError, Problem
from serving.context import Context
from serving.snapshot import Snapshot
from store.market_rows import LastChange


@dataclass(frozen=True, slots=True)
class ReadingChanges:
    """The last change of each reading of a snapshot, and the last bar of each asset.

    `last_closes` has the times (epoch s) of the bars, `closes` their closes, if prices are shown.
    """

    last_closes: Mapping[str, int]
    changes: Mapping[str, Mapping[tuple[str, Timeframe], LastChange]]
    closes: Mapping[str, float]

    def describe(
        self, ticker: str, key: StoredKey, timeframes: Iterable[Timeframe]
    ) -> dict[Timeframe, ReadingChange]:
        """Return the changes that set some readings of an asset."""
        own = self.changes.get(ticker, {})
        return {
            timeframe: self._describe(own[key, timeframe])
            for timeframe in timeframes
            if (key, timeframe) in own
        }

    def get_last_bar(self, ticker: str) -> LastBar | None:
        """Return the newest bar of an asset, None if it has none."""
        closed_at = self.last_closes.get(ticker)
        if closed_at is None:
            return None
        return LastBar.model_construct(
            closed_at=format_instant(1000 * closed_at), close=self.closes.get(ticker)
        )

    def _describe(self, change: LastChange) -> ReadingChange:
        close, percent = self.closes.get(change.ticker), None
        if close is not None and change.is_current and change.price:
            percent = round(100 * (close / change.price - 1), 4)
        return ReadingChange.model_construct(
            since=format_instant(change.created_at), price=change.price, change_percent=percent
        )


def check_detail(query: StateQuery | ConfluenceQuery) -> None:
    """Raise ArgumentError if the details of a query do not fit its view."""
    if query.view != "full" and query.detail == "changes":
        message = f"detail: changes do not fit view {query.view}; omit view or detail"
        raise ArgumentError(Problem("detail", message))


async def load_reading_changes(
    snapshot: Snapshot,
    tickers: Iterable[str],
    timeframe: Timeframe | None,
    context: Context,
) -> ReadingChanges:
    """Read the changes and closes that belong to a snapshot, of some tickers."""
    tickers = list(tickers)
    until, last_closes = snapshot.stored.last_created_at, snapshot.stored.last_closes
    changes: defaultdict[str, dict[tuple[str, Timeframe], LastChange]] = defaultdict(dict)
    ledger = await context.snapshots.ledger(await context.snapshot())
    for change in ledger.find_last_changes(until, tickers, timeframe):
        changes[change.ticker][change.indicator, change.timeframe] = change
    by_close: defaultdict[int, list[str]] = defaultdict(list)
    for ticker in tickers:
        if ticker in last_closes:
            by_close[last_closes[ticker]].append(ticker)
    # The price of a change is that of the feed. A close is a venue's own data, as on pages.
    closes = {} if context.prices is None else await context.snapshots.store.closes(by_close)
    return ReadingChanges(last_closes, changes, closes)
