"""Coverage of a deployment, which the compute job publishes to the store for serving."""

from collections.abc import Iterable, Sequence
from datetime import date
from functools import cached_property

from pydantic import BaseModel, ConfigDict

from schemas.vocabulary import (
    TIMEFRAMES,
    AssetClass,
    IndicatorId,
    IndicatorStatus,
    SourceKind,
    Timeframe,
)


# The store holds coverage as one JSON document. A document with an unknown field was written by a
# newer version and fails to load rather than being served in part.
class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CoveredAsset(_Frozen):
    """One asset of the universe; `timeframes` is empty if the source has no bars of it.

    `alerts` are the timeframes on which alert engines follow it. `listing` is the venue and symbol
    of its stored bars if the source has several venues. Bars may arrive `delay_s` after their
    close. If `has_off_hour_bars`, some recorded bars open off the hour and close at the next full
    hour. If `joins_sundays`, the daily bars that are built from its hourly ones have Sunday's hours
    in Monday's bar.
    A recorded asset has the close of its last bar, `last_close`, and `outdated_from`, the time by
    which the next bar of its session would have closed; both in epoch ms.
    """

    ticker: str
    name: str
    asset_class: AssetClass
    timeframes: tuple[Timeframe, ...]
    alerts: tuple[Timeframe, ...] = ()
    removed_on: date | None = None
    continues_as: str | None = None
    listing: str | None = None
    delay_s: int = 0
    has_off_hour_bars: bool = False
    joins_sundays: bool = False
    last_close: int | None = None
    outdated_from: int | None = None


def merge_timeframes(timeframe_lists: Iterable[Sequence[Timeframe]]) -> list[Timeframe]:
    """Return the timeframes that occur in any of the lists, shortest first."""
    present: set[Timeframe] = set()
    for timeframes in timeframe_lists:
        present.update(timeframes)
        # Mostly after the first list.
        if len(present) == len(TIMEFRAMES):
            break
    return [timeframe for timeframe in TIMEFRAMES if timeframe in present]


class CoveredIndicator(_Frozen):
    """One indicator; `logged` is true if the universe feed lists its changes.

    `note` is one sentence on the meaning of its readings.
    """

    id: IndicatorId
    name: str
    logged: bool
    status: IndicatorStatus = "stable"
    note: str = ""


class Coverage(_Frozen):
    """The universe as far as the source has data; times are epoch ms of the market clock.

    `recorded_until` is set if the source is a recording, and None if it keeps growing. `assets`
    includes removed ones. The latest state is not served while it is older than `served_from`.
    """

    published_at: int
    source: SourceKind
    recorded_until: int | None
    assets: tuple[CoveredAsset, ...]
    indicators: tuple[CoveredIndicator, ...]
    renamed_on: date
    served_from: int | None = None

    @property
    def tracked(self) -> tuple[CoveredAsset, ...]:
        """The assets that were never removed. Only these are counted."""
        return tuple(asset for asset in self.assets if asset.removed_on is None)

    @property
    def stand_ins(self) -> dict[str, str]:
        """Ticker to listing of the derivative that supplies its bars; stocks and metals only."""
        # The colon is ccxt's mark of a derivative, as in "XAU/USDT:USDT". Crypto spot markets
        # have none, and a crypto perpetual is not a proxy for another asset.
        return {
            asset.ticker: asset.listing
            for asset in self.tracked
            if asset.asset_class != "crypto" and asset.listing and ":" in asset.listing
        }

    @cached_property
    def delays(self) -> tuple[int, ...]:
        """The distinct delays (seconds) of the covered assets' bars, sorted."""
        return tuple(sorted({asset.delay_s for asset in self.tracked if asset.timeframes}))

    @property
    def off_hour_tickers(self) -> tuple[str, ...]:
        """The covered assets with recorded bars that open off the hour."""
        return tuple(
            asset.ticker for asset in self.tracked if asset.timeframes and asset.has_off_hour_bars
        )

    @property
    def logged(self) -> tuple[CoveredIndicator, ...]:
        """The indicators whose changes the universe feed lists."""
        return tuple(indicator for indicator in self.indicators if indicator.logged)
