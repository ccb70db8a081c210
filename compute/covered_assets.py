"""Builds the coverage that compute publishes: the part of the universe its source can serve."""

from collections.abc import Iterable
from datetime import date

from compute.indicators.contract import Indicator
from compute.sources.source import Source
from compute.trading_sessions import find_next_close
from compute.universe import Universe
from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator
from schemas.vocabulary import LOGGED_IDS, TIMEFRAME_DURATIONS_S, TIMEFRAMES, Timeframe

ALERT_TIMEFRAMES: tuple[Timeframe, ...] = ("4h", "1d")


def build_coverage(
    universe: Universe,
    source: Source,
    indicators: Iterable[Indicator],
    published_at: int,
    recorded_until: int | None,
    served_from: int | None = None,
) -> Coverage:
    """Return the coverage to publish.

    All times are market times in epoch ms. `recorded_until` is the last run of a recording, None
    if the source keeps growing; `served_from` is the first run that may be served, None if all may.
    """
    assets = []
    for asset in universe.assets:
        native, end = source.get_native_timeframe(asset.ticker), source.get_end(asset.ticker)
        timeframes, ends = list_served_timeframes(native), {}
        if native is not None and end is not None:
            # Longer bars close at the first boundary at or after the close of an hourly bar.
            period_s = TIMEFRAME_DURATIONS_S[native]
            following = -(-find_next_close(asset.session, end) // period_s) * period_s
            ends = {"last_close": 1000 * end, "outdated_from": 1000 * following}
        covered = CoveredAsset(
            ticker=asset.ticker,
            name=asset.name,
            asset_class=asset.asset_class,
            timeframes=timeframes,
            alerts=tuple(each for each in timeframes if asset.alerts and each in ALERT_TIMEFRAMES),
            listing=source.get_listing(asset.ticker),
            delay_s=source.get_delay_s(asset.ticker),
            has_off_hour_bars=source.has_off_hour_bars(asset.ticker),
            joins_sundays=asset.ticker in universe.sunday_joining_tickers,
            removed_on=asset.removed_on,
            continues_as=asset.continues_as,
            **ends,
        )
        assets.append(covered)
    return Coverage(
        published_at=published_at,
        source=source.kind,
        recorded_until=recorded_until,
        served_from=served_from,
        assets=tuple(assets),
        indicators=tuple(
            CoveredIndicator.model_validate(
                {
                    "id": indicator.id,
                    "name": indicator.name,
                    "logged": indicator.id in LOGGED_IDS,
                    "note": indicator.note,
                }
            )
            for indicator in indicators
        ),
        renamed_on=universe.renamed_on,
    )


def add_dropped_assets(new: Coverage, old: Coverage | None, today: date) -> Coverage:
    """Return the new coverage plus the assets that only the old one lists, marked as removed.

    They are removed as of `today`, or as of their announced removal if that came earlier.
    """
    # The published rows and last readings of a dropped asset stay in the store, and answers
    # still have to name it. If the asset returns, the new coverage lists it and wins.
    new_tickers = {asset.ticker for asset in new.assets}
    dropped = [a for a in (old.assets if old else ()) if a.ticker not in new_tickers]
    removed = [
        asset.model_copy(
            update={
                "timeframes": (),
                "alerts": (),
                "removed_on": min(asset.removed_on or today, today),
            }
        )
        for asset in dropped
    ]
    return new.model_copy(update={"assets": (*new.assets, *removed)})


def list_served_timeframes(native: Timeframe | None) -> tuple[Timeframe, ...]:
    """Return the timeframes that bars of a native timeframe serve."""
    if native is None:
        return ()
    return TIMEFRAMES if native == "1h" else (native,)
