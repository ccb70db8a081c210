"""What the compute job publishes of itself to the store before anything is served."""

from datetime import date

from pydantic import BaseModel, ConfigDict

from schemas.vocabulary import AssetClass, IndicatorId, SourceKind, Timeframe


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CoveredAsset(_Frozen):
    """One asset of the universe; `timeframes` is empty where the source has no bars of it."""

    ticker: str
    name: str
    asset_class: AssetClass
    timeframes: tuple[Timeframe, ...]
    removed_on: date | None = None
    continues_as: str | None = None


class CoveredIndicator(_Frozen):
    """One indicator; `logged` says whether the universe feed shows its changes."""

    id: IndicatorId
    name: str
    logged: bool


class Coverage(_Frozen):
    """The universe as the source can serve it; `recorded_until` is epoch ms, None while growing."""

    source: SourceKind
    recorded_until: int | None
    assets: tuple[CoveredAsset, ...]
    indicators: tuple[CoveredIndicator, ...]
    renamed_on: date
