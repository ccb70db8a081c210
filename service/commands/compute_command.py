"""`signals compute`, and the same beside a server: brings the store up to now, then runs hourly.

Nobody waits for that longer than for moments where the store holds a board already: it is served,
and its answers say that they are stale.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import structlog

from compute.hourly_loop import Loop, log_failure
from compute.hourly_pipeline import Runs
from compute.indicators.contract import Indicator
from compute.sources.live import LiveSource
from compute.sources.simulated import SimulatedSource
from compute.universe import load_universe
from schemas.clock import Clock
from schemas.vocabulary import instant
from service.commands.console import Lines, Progressed, from_first, progress_bar, tell
from service.config.settings import Settings
from service.config.sources import opened_source
from service.config.stores import open_market
from service.http.health import Readiness
from service.http.metrics import Metrics
from service.http.metrics_server import Operations, operations_port
from service.processes.executors import reached_crews
from service.processes.memory import one_heap, settle
from service.processes.shutdown import beside, stoppable
from serving.freshness import SIMULATED_NOTE
from serving.snapshot_cache import Boards
from store.errors import LockTakenError, MarketStore, StoreError

OVER = "The recording is played to its end and holds no more to compute."
WAIT_S = 2.0
# Who computes is taken for dead after six seconds; within ten another goes on.
STANDBY_S = 1.0

log = structlog.get_logger("compute")


async def compute(settings: Settings, indicators: Sequence[Indicator], clock: Clock) -> int:
    """Compute alone until interrupted, or until a recording has been played to its end."""
    one_heap()
    async with AsyncExitStack() as opened:
        stop = opened.enter_context(stoppable())
        operations = Operations(opened.enter_context(operations_port(settings)))
        market = await open_market(settings)
        opened.push_async_callback(market.close)
        metrics = Metrics(())
        with stop.ends():
            work = computing(settings, market, indicators, clock, metrics)
            watching = operations.watching(metrics, Readiness(Boards(market), None, clock))
            async with watching, work as running:
                tell(f"Computing on {settings.store_name}, every hour at minute :03.")
                await asyncio.shield(running)
                tell(OVER)
    return 0


@asynccontextmanager
async def computing(
    settings: Settings,
    market: MarketStore,
    indicators: Sequence[Indicator],
    clock: Clock,
    metrics: Metrics,
) -> AsyncIterator[asyncio.Task[None]]:
    """Catch up, then run the loop beside the block, which a long catch-up goes on beside too."""
    universe = load_universe(settings.universe)
    crews = await reached_crews(settings)
    async with AsyncExitStack() as opened:

        async def opened_runs() -> Runs:
            await opened.aclose()
            opening = opened_source(settings, universe, market, clock)
            source = await opened.enter_async_context(opening)
            return Runs(market, source, universe, indicators, clock, crews, metrics.written)

        runs = await opened_runs()
        if settings.source == SimulatedSource.kind:
            tell(SIMULATED_NOTE)
        catch_up = None
        if await _is_prepared(runs):
            is_long = settings.source == LiveSource.name
            catch_up = CatchUp(runs, market, clock, is_long=is_long)

        def loop(runs: Runs, is_prepared: bool) -> Loop:
            return Loop(
                runs, market, clock, asyncio.sleep, is_prepared=is_prepared, ran=metrics.ran
            )

        async with beside(_run(catch_up, runs, opened_runs, market, loop)) as running:
            if catch_up is not None:
                await catch_up.waited_for()
            yield running


async def _is_prepared(runs: Runs) -> bool:
    """Prepare the runs; False where another process computes on the store."""
    try:
        await runs.prepare()
    except LockTakenError as error:
        tell(f"Standing by, to take over when it ends: {error}.")
        return False
    return True


async def _run(
    catch_up: "CatchUp | None",
    runs: Runs,
    opened_runs: Callable[[], Awaitable[Runs]],
    market: MarketStore,
    loop: Callable[[Runs, bool], Loop],
) -> None:
    """Bring the store up to now, and then hour by hour for as long as it is let."""
    leads = catch_up is not None
    is_prepared = catch_up is not None and await catch_up.run()
    settle()
    while not (leads and await _led(loop(runs, is_prepared))):
        runs = await _taken_over(market, opened_runs)
        leads, is_prepared = True, False


async def _led(loop: Loop) -> bool:
    """Run hour by hour to the end; False where another process computes, or may by now."""
    try:
        await loop.run()
    except LockTakenError as error:
        log.warning("standing_by", reason=str(error))
        return False
    return True


async def _taken_over(market: MarketStore, opened_runs: Callable[[], Awaitable[Runs]]) -> Runs:
    """Wait until no other process computes; return runs from the source as it is known by then."""
    told = ""
    while True:
        try:
            await market.lock()
            return await opened_runs()
        except LockTakenError:
            told = ""
        except StoreError as error:
            if str(error) != told:
                told = str(error)
                log.warning("cannot_stand_by", reason=told)
        await asyncio.sleep(STANDBY_S)


class CatchUp:
    """Brings the store up to now; what follows may wait for it, or begin beside it."""

    def __init__(
        self,
        runs: Runs,
        market: MarketStore,
        clock: Clock,
        *,
        is_long: bool,
    ) -> None:
        """Of one that `is_long` no more is waited for than of one beside a board."""
        self._runs: Final = runs
        self._market: Final = market
        self._has_board: Final = runs.has_board
        self._is_long: Final = is_long
        self._what: Final = "catching up" if self._has_board else "building history"
        self._told: Progressed = Lines(self._what, clock)
        self._over: Final = asyncio.Event()
        self._is_waited_for = True

    async def run(self) -> bool:
        """Run every hour that is due; False where it must be begun again.

        What fails while it is waited for is raised, but the loss of the lock.
        """
        told = from_first(lambda done, total: self._told(done, total))
        try:
            await self._runs.catch_up(self._runs.due, told)
        except asyncio.CancelledError:
            await self._tell_stopped()
            raise
        except LockTakenError as error:
            log.warning("lock_lost", reason=str(error))
            self._over.set()
            return False
        except Exception as error:
            if self._is_waited_for:
                raise
            log_failure(error)
            return False
        self._over.set()
        return True

    async def waited_for(self) -> None:
        """Wait until it is over, or for a moment where the store holds a board already."""
        lines = self._told
        with progress_bar(self._what, otherwise=lines) as self._told, suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S if self._has_board or self._is_long else None):
                await self._over.wait()
        self._told, self._is_waited_for = lines, False
        if not self._over.is_set():
            said = "say that they are stale" if self._has_board else "are 503"
            tell(f"Still {self._what}: answers {said} until it is done.")

    async def _tell_stopped(self) -> None:
        kept = (await self._market.progress()).market_time
        until = "nothing yet" if kept is None else f"everything up to {instant(kept)}"
        tell(
            f"Stopped while {self._what}. The store keeps {until}; the next start goes on from "
            "there."
        )
