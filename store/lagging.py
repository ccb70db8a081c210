"""Finds the assets that are late, or whose history is being built or has holes. Pure.

`published_from` has the market time (epoch ms) from which each ticker's changes are published.
"""

from collections.abc import Iterable, Mapping

from schemas.coverage import Coverage
from schemas.vocabulary import DAY_MS, Timeframe
from store.market_rows import WatermarkRow

# The first start of a live source fetches as much; older holes no longer move a reading.
COUNTED_HISTORY_MS = 330 * DAY_MS


def find_building_tickers(
    rows: Iterable[WatermarkRow], published_from: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the assets whose history is being built, and those that a first start lacks.

    The latter never had all of it, and are not assets which a universe file added later.
    """
    building = [row for row in rows if row.history == "building"]
    if not building:
        return (), ()
    # The feed of all assets of a first start begins at one time, that of later ones after it.
    first = min(published_from.values())
    unbuilt = [
        row.ticker for row in building if not row.late and published_from.get(row.ticker) == first
    ]
    return tuple(row.ticker for row in building), tuple(unbuilt)


def find_late(
    rows: Iterable[WatermarkRow],
    published_coverage: Coverage | None,
    published_from: Mapping[str, int],
) -> dict[str, tuple[Timeframe, ...]]:
    """Return the timeframes on which each late asset is late, by ticker, sorted.

    If the source is live, these include assets that never had a bar.
    """
    late = {row.ticker: row.late for row in rows if row.late}
    # An asset that never had a bar has no watermark row. Such a live asset is late because it has a
    # source, which fails: an empty result would not say so. Past snapshots too use today's assets.
    if published_coverage is not None and published_coverage.recorded_until is None:
        late |= {
            a.ticker: tuple(a.timeframes)
            for a in published_coverage.tracked
            if a.timeframes and a.ticker not in published_from
        }
    return dict(sorted(late.items()))
