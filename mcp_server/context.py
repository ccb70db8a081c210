"""What handlers are handed: one version of the board at a time, and where the service lives."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from schemas.coverage import Coverage, CoveredAsset
from schemas.errors import unavailable
from schemas.vocabulary import midnight_s
from store.protocol import MarketStore, Snapshot

FIRST_COMPUTE_RETRY_S = 900


@dataclass(frozen=True, slots=True)
class Board:
    """One computed version of everything latest; `market_time` is epoch ms of the last compute."""

    snapshot: Snapshot
    coverage: Coverage
    market_time: int
    assets: dict[str, CoveredAsset]

    def removed(self) -> list[str]:
        """Return the tickers that are no longer covered at market time, sorted."""
        return sorted(
            asset.ticker
            for asset in self.coverage.assets
            if asset.removed_on is not None
            and midnight_s(asset.removed_on) * 1000 <= self.market_time
        )


def computed_board(snapshot: Snapshot) -> Board | None:
    """Return the board of a snapshot, None where nothing has been computed yet."""
    if snapshot.coverage is None or snapshot.market_time is None:
        return None
    assets = {asset.ticker: asset for asset in snapshot.coverage.assets}
    return Board(snapshot, snapshot.coverage, snapshot.market_time, assets)


class Context:
    """The store behind one cached snapshot, the addresses to name, and the wall clock (ms)."""

    def __init__(
        self,
        store: MarketStore,
        base_url: str,
        docs: str,
        clock: Callable[[], int],
    ) -> None:
        self.store = store
        self.base_url = base_url
        self.docs = docs
        self.clock = clock
        self._lock = asyncio.Lock()
        self._version: int | None = None
        self._held: tuple[Snapshot, Board | None] | None = None

    async def snapshot(self) -> Snapshot:
        """Return the latest snapshot, read anew only where the store's version has moved."""
        return (await self._latest())[0]

    async def board(self) -> Board:
        """Return the latest board; ApiError `unavailable` where nothing has been computed yet."""
        board = (await self._latest())[1]
        if board is None:
            raise unavailable(
                "Nothing has been computed yet: the compute job has not finished its first run. "
                f"Retry in {FIRST_COMPUTE_RETRY_S} seconds.",
                retry_after_s=FIRST_COMPUTE_RETRY_S,
            )
        return board

    async def _latest(self) -> tuple[Snapshot, Board | None]:
        version = await self.store.version()
        if self._held is not None and version == self._version:
            return self._held
        async with self._lock:
            return await self._reloaded()

    async def _reloaded(self) -> tuple[Snapshot, Board | None]:
        version = await self.store.version()
        if self._held is None or version != self._version:
            snapshot = await self.store.snapshot()
            self._held, self._version = (snapshot, computed_board(snapshot)), version
        return self._held
