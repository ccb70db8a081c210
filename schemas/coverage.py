"""What the compute job publishes of itself to the store before anything is served."""

from collections.abc import Iterable, Sequence
from datetime import date

from pydantic import BaseModel, ConfigDict

from schemas.vocabulary import (
    TIMEFRAMES,
    AssetClass,
    IndicatorId,
    IndicatorStatus,
    SourceKind,
    Timeframe,
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CoveredAsset(_Frozen):
    """One asset of the universe; `timeframes` is empty where the source has no bars of it.

    `alerts` are the timeframes on which alert engines follow it. `listing` is where its bars are
    from where the source has several places; they may come `delay_s` after their close.
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


def merge_timeframes(timeframe_lists: Iterable[Sequence[Timeframe]]) -> list[Timeframe]:
    """Return the timeframes that occur in any of the lists, shortest first."""
    present = {timeframe for timeframes in timeframe_lists for timeframe in timeframes}
    return [timeframe for timeframe in TIMEFRAMES if timeframe in present]


class CoveredIndicator(_Frozen):
    """One indicator; `logged` says whether the universe feed shows its changes.

    `note` says in a sentence what its readings mean.
    """

    id: IndicatorId
    name: str
    logged: bool
    status: IndicatorStatus = "stable"
    note: str = ""


class Coverage(_Frozen):
    """The universe as the source can serve it; times are epoch ms of the market clock.

    `recorded_until` is None while the source grows. `assets` holds the removed ones too. No board
    from before `served_from` is served.
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
        """The assets that were never removed, which alone are counted."""
        return tuple(asset for asset in self.assets if asset.removed_on is None)

    @property
    def stand_ins(self) -> dict[str, str]:
        """The assets whose bars are those of a derivative, and venue and symbol of that."""
        return {
            asset.ticker: asset.listing
            for asset in self.tracked
            if asset.asset_class != "crypto" and asset.listing and ":" in asset.listing
        }

    @property
    def delays(self) -> tuple[int, ...]:
        """The delays (seconds) after which bars of assets may come, each once, sorted."""
        return tuple(sorted({asset.delay_s for asset in self.tracked if asset.timeframes}))

    @property
    def logged(self) -> tuple[CoveredIndicator, ...]:
        """The indicators whose changes the universe feed shows."""
        return tuple(indicator for indicator in self.indicators if indicator.logged)
