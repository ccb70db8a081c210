"""`signals compute`, and the same beside a server: brings the store up to now, then runs hourly."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from compute.indicators.contract import Indicator
from compute.loop import Loop
from compute.runs import Runs
from compute.universe import load_universe
from mcp_server.freshness import SIMULATED_NOTE
from schemas.vocabulary import instant
from service.commands import catch_up, progress_bar, tell
from service.lifetime import beside, stoppable
from service.settings import Settings
from service.sources import open_source
from store.protocol import LockTakenError
from store.sqlite import SqliteMarketStore

OVER = "The recording is played to its end and holds no more to compute."


async def compute(
    settings: Settings, indicators: Sequence[Indicator], clock: Callable[[], int]
) -> int:
    """Compute alone until interrupted, or until a recording has been played to its end."""
    async with AsyncExitStack() as opened:
        stop = opened.enter_context(stoppable())
        market = await SqliteMarketStore.open(settings.market_path)
        opened.push_async_callback(market.close)
        with stop.ends():
            async with computing(settings, market, indicators, clock) as running:
                tell(f"Computing on {settings.market_path}, every hour at minute :03.")
                await asyncio.shield(running)
                tell(OVER)
    return 0


@asynccontextmanager
async def computing(
    settings: Settings,
    market: SqliteMarketStore,
    indicators: Sequence[Indicator],
    clock: Callable[[], int],
) -> AsyncIterator[asyncio.Task[None]]:
    """Catch up, then run the loop beside the block."""
    universe = load_universe(settings.universe)
    source = await open_source(settings, universe, market, clock)
    if source.kind == "simulated":
        tell(SIMULATED_NOTE)
    runs = Runs(market, source, universe, indicators, clock)
    is_prepared = await _caught_up(runs, market)
    _settle()
    loop = Loop(
        runs, market, clock, asyncio.sleep, is_prepared=is_prepared, stands_by=not is_prepared
    )
    async with beside(loop.run()) as running:
        yield running


async def _caught_up(runs: Runs, market: SqliteMarketStore) -> bool:
    """Bring the store up to now; False where another process computes on it."""
    try:
        await runs.prepare()
    except LockTakenError as error:
        tell(f"Standing by, to take over when it ends: {error}.")
        return False
    what = "building history" if runs.done < 0 else "catching up"
    try:
        if progress_bar().disable:
            await runs.catch_up(runs.due, _Lines(what))
        else:
            await catch_up(runs, runs.due, what)
    except asyncio.CancelledError:
        kept = (await market.progress()).market_time
        until = "nothing yet" if kept is None else f"everything up to {instant(kept)}"
        tell(f"Stopped while {what}. The store keeps {until}; the next start goes on from there.")
        raise
    return True


def _settle() -> None:
    """Spare what was made by now from the garbage collector, which else halts all for 0.1 s."""
    gc.collect()
    gc.freeze()


class _Lines:
    """Progress for logs, where no bar can be drawn: a line at every tenth of the way."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._first: int | None = None
        self._told = 0

    def __call__(self, done: int, end: int) -> None:
        """Tell the share done, if the way is longer than one pass."""
        if self._first is None:
            self._first = done
        tenths = 10 * (done - self._first) // max(end - self._first, 1)
        if tenths > self._told:
            tell(f"{self._what}: {tenths}0%")
            self._told = tenths
