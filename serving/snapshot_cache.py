"""The latest computed state as one immutable snapshot, replaced when the store moves on."""

import asyncio
from dataclasses import dataclass, field
from functools import cached_property

from schemas.coverage import Coverage, CoveredAsset
from schemas.vocabulary import (
    DAY_MS,
    RETENTION_MS,
    Tier,
    instant,
    midnight_s,
)
from serving.response_cache import KeptAnswers
from store.errors import MarketStore
from store.market_rows import Snapshot, Statistics

STATISTICS_DAYS = 30


@dataclass(frozen=True)
class Board:
    """One computed version of everything latest; `market_time` is epoch ms of the last compute.

    `is_past` where it is no longer the latest: what was served at a time gone by. `answers` are
    those that rest on this board alone.
    """

    snapshot: Snapshot
    coverage: Coverage
    market_time: int
    assets: dict[str, CoveredAsset]
    indicator_names: dict[str, str]
    is_past: bool = False
    answers: KeptAnswers = field(default_factory=KeptAnswers, compare=False, repr=False)

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

    @cached_property
    def removed(self) -> list[str]:
        """The tickers with readings that are not covered any more at market time, sorted."""
        return sorted(
            ticker
            for ticker in self.snapshot.readings.keys() & self.assets.keys()
            if (removed_on := self.assets[ticker].removed_on) is not None
            and midnight_s(removed_on) * 1000 <= self.market_time
        )

    def indicator_name(self, indicator: str) -> str:
        """Return the display name of an indicator, its id where it is not covered any more."""
        return self.indicator_names.get(indicator, indicator)


def computed_board(snapshot: Snapshot, is_past: bool = False) -> Board | None:
    """Return the board of a snapshot, None where nothing that is served had been computed yet."""
    if snapshot.coverage is None or snapshot.market_time is None:
        return None
    if snapshot.market_time < (snapshot.coverage.served_from or 0):
        return None
    assets = {asset.ticker: asset for asset in snapshot.coverage.assets}
    names: dict[str, str] = {i.id: i.name for i in snapshot.coverage.indicators}
    return Board(snapshot, snapshot.coverage, snapshot.market_time, assets, names, is_past)


def _awaited(snapshot: Snapshot) -> str:
    served_from = None if snapshot.coverage is None else snapshot.coverage.served_from
    if served_from is None:
        return "Nothing has been computed yet: the compute job has not finished its first run."
    built = snapshot.market_time
    until = "nothing of it yet" if built is None else f"up to {instant(built)}"
    return (
        "History is being fetched, and nothing is served before it is whole: built is "
        f"{until}, it goes to {instant(served_from)}."
    )


class Boards:
    """A store behind one cached snapshot, read anew only where the store's version has moved."""

    def __init__(self, store: MarketStore) -> None:
        self.store = store
        self._lock = asyncio.Lock()
        self._version: int | None = None
        self._held: tuple[Snapshot, Board | None] | None = None
        self._is_fresh = False
        self._counting = asyncio.Lock()
        self._counted: tuple[Board, dict[Tier, Statistics]] | None = None

    async def coverage(self) -> Coverage | None:
        """Return what the compute job last published of itself, None where it never has."""
        return (self._known() or await self._latest())[0].coverage

    async def awaited(self) -> str:
        """Say what the first board waits for."""
        return _awaited((self._known() or await self._latest())[0])

    async def board(self) -> Board | None:
        """Return the latest board, None where nothing has been computed yet."""
        return (self._known() or await self._latest())[1]

    def at_hand(self) -> Board | None:
        """Return the latest board without a wait; None where it must be read, or there is none."""
        known = self._known()
        return None if known is None else known[1]

    @property
    def held(self) -> Board | None:
        """The board that was read last, whatever the store holds by now."""
        return None if self._held is None else self._held[1]

    async def past(self, at: int) -> Board | None:
        """Return the board that was served at a time (epoch ms), None before the first."""
        return computed_board(await self.store.snapshot_at(at), is_past=True)

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

    def _known(self) -> tuple[Snapshot, Board | None] | None:
        """Return the held state where it is the latest, which is asked once a turn of the loop."""
        if not self._is_fresh:
            if self._held is None or self.store.version() != self._version:
                return None
            self._is_fresh = True
            asyncio.get_running_loop().call_soon(self._doubt)
        return self._held

    def _doubt(self) -> None:
        self._is_fresh = False

    async def _latest(self) -> tuple[Snapshot, Board | None]:
        """Return the latest state, read once however many wait for it."""
        async with self._lock:
            version = self.store.version()
            if self._held is None or version != self._version:
                snapshot = await self.store.snapshot()
                self._held, self._version = (snapshot, computed_board(snapshot)), version
            return self._held
