"""What the compute job says of itself: the universe as its source can serve it."""

from collections.abc import Iterable
from datetime import date

from compute.indicators.contract import Indicator
from compute.sources.source import Source
from compute.universe import Asset, Universe
from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator
from schemas.vocabulary import LOGGED_IDS, TIMEFRAMES, Timeframe

ALERT_TIMEFRAMES: tuple[Timeframe, ...] = ("4h", "1d")


def build_coverage(
    universe: Universe,
    source: Source,
    indicators: Iterable[Indicator],
    published_at: int,
    recorded_until: int | None,
    served_from: int | None = None,
) -> Coverage:
    """Return the coverage to publish at a market time.

    `recorded_until` is that of the last run there will be, `served_from` that of the first whose
    board is served; all are epoch ms.
    """
    return Coverage(
        published_at=published_at,
        source=source.kind,
        recorded_until=recorded_until,
        served_from=served_from,
        assets=tuple(
            CoveredAsset(
                ticker=asset.ticker,
                name=asset.name,
                asset_class=asset.asset_class,
                timeframes=list_served_timeframes(source.get_native_timeframe(asset.ticker)),
                alerts=_list_alert_timeframes(asset, source),
                listing=source.get_listing(asset.ticker),
                delay_s=source.get_delay_s(asset.ticker),
                removed_on=asset.removed_on,
                continues_as=asset.continues_as,
            )
            for asset in universe.assets
        ),
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
    """Return the coverage with the assets that only the old one has, as removed from a day on.

    Their published rows and last readings stay, so their names must. An asset whose removal was
    announced for a later day ends on the day it is dropped; one that returns is the new one's.
    """
    new_tickers = {asset.ticker for asset in new.assets}
    dropped = [a for a in (old.assets if old else ()) if a.ticker not in new_tickers]
    removed = [_mark_removed(asset, min(asset.removed_on or today, today)) for asset in dropped]
    return new.model_copy(update={"assets": (*new.assets, *removed)})


def list_served_timeframes(native: Timeframe | None) -> tuple[Timeframe, ...]:
    """Return the timeframes that bars of a native timeframe serve."""
    if native is None:
        return ()
    return TIMEFRAMES if native == "1h" else (native,)


def _mark_removed(asset: CoveredAsset, removed_on: date) -> CoveredAsset:
    return asset.model_copy(update={"timeframes": (), "alerts": (), "removed_on": removed_on})


def _list_alert_timeframes(asset: Asset, source: Source) -> tuple[Timeframe, ...]:
    """Return the timeframes on which the alert engines follow an asset."""
    timeframes = (
        list_served_timeframes(source.get_native_timeframe(asset.ticker)) if asset.alerts else ()
    )
    return tuple(timeframe for timeframe in timeframes if timeframe in ALERT_TIMEFRAMES)
