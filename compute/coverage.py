"""What the compute job says of itself: the universe as its source can serve it."""

from collections.abc import Iterable

from compute.indicators.contract import Indicator
from compute.sources.source import Source
from compute.universe import Universe
from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator
from schemas.vocabulary import TIMEFRAMES, Timeframe

UNLOGGED = "perpkit"


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
                {"id": indicator.id, "name": indicator.name, "logged": indicator.id != UNLOGGED}
            )
            for indicator in indicators
        ),
        renamed_on=universe.renamed_on,
    )


def served(native: Timeframe | None) -> tuple[Timeframe, ...]:
    """Return the timeframes that bars of a native timeframe serve."""
    if native is None:
        return ()
    return TIMEFRAMES if native == "1h" else (native,)
