"""What handlers are handed: one version of the board at a time, the caller, and the addresses."""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from access.admission import Admitted
from schemas.coverage import Coverage, CoveredAsset
from schemas.errors import unavailable
from schemas.vocabulary import DAY_MS, RETENTION_MS, Mode, Tier, midnight_s
from store.protocol import MarketStore
from store.rows import Snapshot, Statistics

FIRST_COMPUTE_RETRY_S = 900
STATISTICS_DAYS = 30


@dataclass(frozen=True, slots=True)
class Rendered:
    """An answer as JSON text, and the times (epoch ms) in which it tells the truth."""

    text: str
    begins_at: int
    ends_at: int | None

    def holds_at(self, now: int) -> bool:
        """Tell whether the answer is true at a time; one without an end is so ever after."""
        return self.begins_at <= now and (self.ends_at is None or now < self.ends_at)


@dataclass(frozen=True, slots=True)
class Board:
    """One computed version of everything latest; `market_time` is epoch ms of the last compute.

    `rendered` keeps the answers that rest on this board alone.
    """

    snapshot: Snapshot
    coverage: Coverage
    market_time: int
    assets: dict[str, CoveredAsset]
    indicator_names: dict[str, str]
    rendered: dict[Hashable, Rendered] = field(default_factory=dict, compare=False, repr=False)

    @property
    def newest(self) -> int:
        """The end of what this version holds: rows may be some ms later than the market time."""
        return max(self.market_time, self.snapshot.last_created_at)

    def market_clock(self, now: int) -> int:
        """Return the market time (epoch ms) at a wall clock: a recording ends, nothing runs back.

        Windows end here.
        """
        until = self.coverage.recorded_until
        return max(self.newest, now if until is None else min(now, until))

    def removed(self) -> list[str]:
        """Return the tickers with readings that are not covered any more at market time, sorted."""
        return sorted(
            ticker
            for ticker in self.snapshot.readings.keys() & self.assets.keys()
            if (removed_on := self.assets[ticker].removed_on) is not None
            and midnight_s(removed_on) * 1000 <= self.market_time
        )

    def indicator_name(self, indicator: str) -> str:
        """Return the display name of an indicator, its id where it is not covered any more."""
        return self.indicator_names.get(indicator, indicator)


def computed_board(snapshot: Snapshot) -> Board | None:
    """Return the board of a snapshot, None where nothing has been computed yet."""
    if snapshot.coverage is None or snapshot.market_time is None:
        return None
    assets = {asset.ticker: asset for asset in snapshot.coverage.assets}
    names: dict[str, str] = {i.id: i.name for i in snapshot.coverage.indicators}
    return Board(snapshot, snapshot.coverage, snapshot.market_time, assets, names)


class Boards:
    """A store behind one cached snapshot, read anew only where the store's version has moved."""

    def __init__(self, store: MarketStore) -> None:
        self.store = store
        self._lock = asyncio.Lock()
        self._version: int | None = None
        self._held: tuple[Snapshot, Board | None] | None = None
        self._counting = asyncio.Lock()
        self._counted: tuple[Board, dict[Tier, Statistics]] | None = None

    async def coverage(self) -> Coverage | None:
        """Return what the compute job last published of itself, None where it never has."""
        return (await self._latest())[0].coverage

    async def board(self) -> Board | None:
        """Return the latest board, None where nothing has been computed yet."""
        return (await self._latest())[1]

    async def statistics(self, board: Board) -> dict[Tier, Statistics]:
        """Return the volume of the 30 days that a board ends, counted once however many ask."""
        async with self._counting:
            if self._counted is None or self._counted[0] is not board:
                counts = {tier: await self._volume(tier, board) for tier in RETENTION_MS}
                self._counted = (board, counts)
            return self._counted[1]

    async def _volume(self, tier: Tier, board: Board) -> Statistics:
        return await self.store.statistics(
            tier,
            after=board.newest - STATISTICS_DAYS * DAY_MS,
            until=board.snapshot.last_created_at,
            kept_after=board.market_time - RETENTION_MS[tier],
        )

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


@dataclass(frozen=True, slots=True)
class Context:
    """The boards, the addresses to name, the wall clock (epoch ms), the billing mode, who calls.

    `caller` is None on calls that need no key.
    """

    boards: Boards
    base_url: str
    docs: str
    clock: Callable[[], int]
    mode: Mode | None
    daily_limit: int
    caller: Admitted | None = None

    async def board(self) -> Board:
        """Return the latest board; ApiError `unavailable` where nothing has been computed yet."""
        board = await self.boards.board()
        if board is None:
            raise unavailable(
                "Nothing has been computed yet: the compute job has not finished its first run. "
                f"Retry in {FIRST_COMPUTE_RETRY_S} seconds.",
                retry_after_s=FIRST_COMPUTE_RETRY_S,
            )
        return board
