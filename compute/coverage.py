"""What the compute job says of itself: the universe as its source can serve it."""

from collections.abc import Iterable
from datetime import date

from compute.indicators.contract import Indicator
from compute.indicators.registry import UNIVERSE_LOGGED
from compute.sources.source import Source
from compute.universe import Universe
from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator
from schemas.vocabulary import TIMEFRAMES, Timeframe


def coverage(
    universe: Universe,
    source: Source,
    indicators: Iterable[Indicator],
    recorded_until: int | None,
) -> Coverage:
    """Return the coverage to publish; `recorded_until` as the market time (ms) of the last run."""
    return Coverage(
        source=source.kind,
        recorded_until=recorded_until,
        assets=tuple(
            CoveredAsset(
                ticker=asset.ticker,
                name=asset.name,
                asset_class=asset.asset_class,
                timeframes=served(source.native(asset.ticker)),
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
                    "logged": indicator.id in UNIVERSE_LOGGED,
                }
            )
            for indicator in indicators
        ),
        renamed_on=universe.renamed_on,
    )


def with_dropped(new: Coverage, old: Coverage | None, on: date) -> Coverage:
    """Return the coverage with the assets that only the old one has, as removed from a day on.

    Their published rows and last readings stay, so their names must.
    """
    kept = {asset.ticker for asset in new.assets}
    dropped = [a for a in (old.assets if old else ()) if a.ticker not in kept]
    removed = [
        a.model_copy(update={"timeframes": (), "removed_on": a.removed_on or on}) for a in dropped
    ]
    return new.model_copy(update={"assets": (*new.assets, *removed)})


def served(native: Timeframe | None) -> tuple[Timeframe, ...]:
    """Return the timeframes that bars of a native timeframe serve."""
    if native is None:
        return ()
    return TIMEFRAMES if native == "1h" else (native,)
