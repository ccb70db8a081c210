"""The immutable state of one version of the store, from which all tools answer."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from schemas.coverage import Coverage, CoveredAsset
from schemas.vocabulary import compute_midnight_s
from serving.response_cache import ResponseCache
from store.market_rows import StoredSnapshot

MAX_PAST_BYTES = 6_000_000


@dataclass(frozen=True)
class Snapshot:
    """The readings and coverage of one version of the store, immutable except for its cache.

    `market_time` is the epoch ms of the last compute. `is_past` marks a snapshot rebuilt for
    `as_of`. `responses` caches the responses that depend only on this snapshot, `past_responses`
    those with `as_of`, which must not displace them, and `feeds` what the arguments of feed calls
    refer to.
    """

    stored: StoredSnapshot
    coverage: Coverage
    market_time: int
    assets: dict[str, CoveredAsset]
    indicator_names: dict[str, str]
    is_past: bool = False
    responses: ResponseCache = field(default_factory=ResponseCache, compare=False, repr=False)
    past_responses: ResponseCache = field(
        default_factory=lambda: ResponseCache(MAX_PAST_BYTES), compare=False, repr=False
    )
    feeds: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def newest_at(self) -> int:
        """The later of market time and newest row, which can be some ms after it."""
        return max(self.market_time, self.stored.last_created_at)

    def to_market_time(self, now: int) -> int:
        """Return the market time at a wall clock time, both epoch ms; time windows end there.

        A recording's time stops at its end. The result is never before `newest_at`.
        """
        until = self.coverage.recorded_until
        return max(self.newest_at, now if until is None else min(now, until))

    @cached_property
    def removed_tickers(self) -> list[str]:
        """The tickers that have readings but were removed by the market time, sorted."""
        return sorted(
            ticker
            for ticker in self.stored.readings.keys() & self.assets.keys()
            if self.is_removed(self.assets[ticker])
        )

    @cached_property
    def building_tickers(self) -> list[str]:
        """The covered tickers that never had their whole history, which is being built, sorted."""
        building, late = self.stored.building_tickers, self.stored.late
        return [ticker for ticker in building if ticker in self.assets and ticker not in late]

    @cached_property
    def ended_tickers(self) -> list[str]:
        """The tickers whose recorded bars ended so early that the next one is due, sorted.

        Removed assets are not among them.
        """
        return sorted(
            ticker
            for ticker, asset in self.assets.items()
            if asset.outdated_from is not None
            and asset.outdated_from <= self.market_time
            and not self.is_removed(asset)
        )

    @cached_property
    def exceptional_tickers(self) -> frozenset[str]:
        """The tickers of which `meta` of a page may have to say something."""
        stored = self.stored
        delayed = [asset.ticker for asset in self.coverage.tracked if asset.delay_s]
        lists = self.building_tickers, self.ended_tickers, self.removed_tickers, delayed
        return frozenset(chain(stored.late, stored.missing_bars, self.coverage.stand_ins, *lists))

    def is_removed(self, asset: CoveredAsset) -> bool:
        """Return true if an asset was removed by the market time."""
        removed_on = asset.removed_on
        return removed_on is not None and compute_midnight_s(removed_on) * 1000 <= self.market_time

    def get_indicator_name(self, indicator: str) -> str:
        """Return the display name of an indicator, its id if it is no longer covered."""
        return self.indicator_names.get(indicator, indicator)


def build_snapshot(stored: StoredSnapshot, is_past: bool = False) -> Snapshot | None:
    """Build a snapshot from stored rows; None if they have no coverage or are not served yet."""
    if stored.coverage is None or stored.market_time is None:
        return None
    # The latest state is not served until the first start has built the history. Live markets have
    # no past before that either, because no client was served the changes that were real then.
    has_whole_past = is_past and stored.coverage.source != "live"
    if not has_whole_past and stored.market_time < (stored.coverage.served_from or 0):
        return None
    # The state of no asset is computed yet.
    if stored.building_tickers and not stored.readings:
        return None
    assets = {asset.ticker: asset for asset in stored.coverage.assets}
    names: dict[str, str] = {i.id: i.name for i in stored.coverage.indicators}
    return Snapshot(stored, stored.coverage, stored.market_time, assets, names, is_past)
