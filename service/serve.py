"""`signals serve` and `signals compute`: brings the store up to now, then runs every hour.

The port is taken first and served once the first catch-up is done; where another process computes
on the store, at once. A signal ends either command with status 0, whatever it is doing.
"""

import asyncio
import gc
import ipaddress
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from pathlib import Path

import uvicorn

from access.keys import Keys
from compute.indicators.contract import Indicator
from compute.loop import Loop
from compute.runs import Runs
from compute.universe import load_universe
from mcp_server.freshness import SIMULATED_NOTE
from rest_shim.manifest import manifest
from schemas.vocabulary import instant
from service.app import create_app
from service.commands import catch_up, progress_bar
from service.settings import Settings, SettingsError, comma_separated
from service.sources import open_source
from store.protocol import LockTakenError
from store.sqlite import SqliteMarketStore
from store.sqlite_access import SqliteAccessStore

SIGNALS = (signal.SIGINT, signal.SIGTERM)
UNANSWERED_S = 3
OVER = "The recording is played to its end and holds no more to compute."


class Stop:
    """What SIGINT and SIGTERM ask for; the first one counts.

    It ends the block that is `ended` by it; asked for outside, as while stores open, it ends the
    next such block where that first waits.
    """

    def __init__(self) -> None:
        self._is_asked = False
        self._task: asyncio.Task[object] | None = None

    def ask(self) -> None:
        """End what can be ended; what closes behind it is left in peace."""
        if not self._is_asked and self._task is not None:
            self._task.cancel()
        self._is_asked = True

    @contextmanager
    def ends(self) -> Iterator[None]:
        """End the block, whatever it waits for, when asked."""
        self._task = task = asyncio.current_task()
        assert task is not None
        if self._is_asked:
            task.cancel()
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_asked:
                raise
            task.uncancel()
        finally:
            self._task = None


class Server(uvicorn.Server):
    """Leaves signals to `Stop`: uvicorn raises them again at its end, before the stores close."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


async def serve(
    settings: Settings, indicators: Sequence[Indicator], clock: Callable[[], int]
) -> int:
    """Serve and compute until interrupted. `clock` is the wall clock in epoch milliseconds."""
    async with AsyncExitStack() as opened:
        stop = opened.enter_context(_stoppable())
        listener = opened.enter_context(closing(_listen(settings)))
        market = await SqliteMarketStore.open(settings.market_path)
        opened.push_async_callback(market.close)
        access = await SqliteAccessStore.open(settings.access_path)
        opened.push_async_callback(access.close)
        with stop.ends():
            async with _computing(settings, market, indicators, clock):
                await _serve(settings, market, Keys(access, clock), clock, listener)
    return 0


async def compute(
    settings: Settings, indicators: Sequence[Indicator], clock: Callable[[], int]
) -> int:
    """Compute alone until interrupted, or until a recording has been played to its end."""
    async with AsyncExitStack() as opened:
        stop = opened.enter_context(_stoppable())
        market = await SqliteMarketStore.open(settings.market_path)
        opened.push_async_callback(market.close)
        with stop.ends():
            async with _computing(settings, market, indicators, clock) as computing:
                _tell(f"Computing on {settings.market_path}, every hour at minute :03.")
                await asyncio.shield(computing)
                _tell(OVER)
    return 0


@contextmanager
def _stoppable() -> Iterator[Stop]:
    """Listen to the signals until the block has closed what it opened."""
    stop, loop = Stop(), asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.ask)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _computing(
    settings: Settings,
    market: SqliteMarketStore,
    indicators: Sequence[Indicator],
    clock: Callable[[], int],
) -> AsyncIterator[asyncio.Task[None]]:
    """Catch up, then run the loop beside the block, which ends with it if the loop fails."""
    universe = load_universe(settings.universe)
    source = await open_source(settings, universe, market, clock)
    if source.kind == "simulated":
        _tell(SIMULATED_NOTE)
    runs = Runs(market, source, universe, indicators, clock)
    is_prepared = await _caught_up(runs, market)
    _settle()
    loop = Loop(
        runs, market, clock, asyncio.sleep, is_prepared=is_prepared, stands_by=not is_prepared
    )
    block, computing = asyncio.current_task(), asyncio.create_task(loop.run())
    assert block is not None

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            block.cancel()

    computing.add_done_callback(ended)
    try:
        yield computing
    finally:
        computing.cancel()
        with suppress(asyncio.CancelledError):
            await computing


async def _caught_up(runs: Runs, market: SqliteMarketStore) -> bool:
    """Bring the store up to now; False where another process computes on it."""
    try:
        await runs.prepare()
    except LockTakenError as error:
        _tell(f"Standing by, to take over when it ends: {error}.")
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
        _tell(f"Stopped while {what}. The store keeps {until}; the next start goes on from there.")
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
            _tell(f"{self._what}: {tenths}0%")
            self._told = tenths


def _listen(settings: Settings) -> socket.socket:
    """Take the port before any work, so that an occupied one is told at once.

    Who connects before it is served waits in the queue.
    """
    listener: socket.socket | None = None
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = min(found, key=lambda place: place[0] != socket.AF_INET)
        # asyncio disables Nagle's delay only on sockets that name their protocol.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise SettingsError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            "set SIGNALS_PORT or SIGNALS_HOST"
        ) from None
    return listener


async def _serve(
    settings: Settings,
    market: SqliteMarketStore,
    keys: Keys,
    clock: Callable[[], int],
    listener: socket.socket,
) -> None:
    app = create_app(
        market,
        keys,
        base_url=settings.address,
        clock=clock,
        allowed_hosts=comma_separated(settings.allowed_hosts),
        allowed_origins=comma_separated(settings.allowed_origins),
    )
    server = Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=UNANSWERED_S,
        )
    )
    _tell(_welcome(settings.address, await _first_key(settings, keys)))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await serving


async def _first_key(settings: Settings, keys: Keys) -> str | None:
    """Make a key at the first start, where only the operator's own terminal shows it."""
    is_own = _is_loopback(settings.host) and settings.base_url is None and sys.stderr.isatty()
    return await keys.create("first start") if is_own and not await keys.list() else None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _welcome(address: str, api_key: str | None) -> str:
    """Return what a newcomer needs; every indented line can be pasted as it stands."""
    mcp = manifest(address, None).mcp
    if api_key is None:
        called = sys.argv[0] if Path(sys.argv[0]).name == "signals" else "signals"
        key = f"Make an API key:\n  {called} keys create --label me"
    else:
        key = f"Your API key, shown this once:\n  export SIGNALS_API_KEY={api_key}"
    return f"""Listening on {address}
MCP endpoint:
  {mcp.url}
{key}
Register with a client:
  {mcp.registration}"""


def _tell(text: str) -> None:
    print(text, file=sys.stderr)
