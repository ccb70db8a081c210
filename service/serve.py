"""`signals serve`: catches the store up, listens, says how to reach it."""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from access.keys import Keys
from compute.indicators.contract import Indicator
from compute.runs import Runs, last_run
from compute.sources.files import FilesSource
from compute.universe import load_universe
from service.app import create_app
from service.commands import catch_up
from service.settings import Settings, SettingsError, comma_separated
from store.protocol import StoreError
from store.sqlite import SqliteMarketStore
from store.sqlite_access import SqliteAccessStore

EMPTY = """The store is empty: /state and /signals answer 503 until bars are replayed. To fill it:
  signals replay --bars DIR
  SIGNALS_SOURCE=files:DIR make serve"""


class Server(uvicorn.Server):
    """Ends by returning on SIGINT and SIGTERM, so that the stores are closed behind it.

    uvicorn's own way raises the signal once more when it has ended, which cancels the closing.
    """

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ask the server to stop on a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def serve(
    settings: Settings, indicators: Sequence[Indicator], clock: Callable[[], int]
) -> int:
    """Serve until interrupted. `clock` is the wall clock in epoch milliseconds."""
    listener = _listen(settings)
    try:
        market = await SqliteMarketStore.open(settings.market_path)
        try:
            await _compute(settings, indicators, market, clock)
            access = await SqliteAccessStore.open(settings.access_path)
            try:
                await _listen_and_serve(settings, market, access, clock, listener)
            finally:
                await access.close()
        finally:
            await market.close()
    finally:
        listener.close()
    return 0


def _listen(settings: Settings) -> socket.socket:
    """Take the port before any work, so that an occupied one is told at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            "set SIGNALS_PORT or SIGNALS_HOST"
        ) from None
    return listener


async def _compute(
    settings: Settings,
    indicators: Sequence[Indicator],
    market: SqliteMarketStore,
    clock: Callable[[], int],
) -> None:
    """Bring a recorded source's store up to the clock; any other source must have no bars yet."""
    folder = settings.bars_folder
    if folder is not None:
        universe = load_universe(settings.universe)
        runs = Runs(market, FilesSource(folder, universe), universe, indicators)
        await runs.prepare(clock())
        await catch_up(runs, last_run(clock()), "catching up")
        return
    known = (await market.progress()).source
    if known is not None:
        raise StoreError(
            f"{settings.market_path} holds the bars of {known}: set SIGNALS_SOURCE={known}, "
            "or another SIGNALS_DATABASE_URL"
        )
    print(EMPTY, file=sys.stderr)


async def _listen_and_serve(
    settings: Settings,
    market: SqliteMarketStore,
    access: SqliteAccessStore,
    clock: Callable[[], int],
    listener: socket.socket,
) -> None:
    app = create_app(
        market,
        Keys(access, clock),
        base_url=settings.address,
        clock=clock,
        allowed_hosts=comma_separated(settings.allowed_hosts),
        allowed_origins=comma_separated(settings.allowed_origins),
    )
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, proxy_headers=False, server_header=False
    )
    print(_registration(settings.address), file=sys.stderr)
    await Server(config).serve(sockets=[listener])


def _registration(address: str) -> str:
    return f"""Listening on {address}
  MCP endpoint: {address}/api/v1/mcp
  Make a key:   signals keys create --label me
  Register:     claude mcp add --transport http signals {address}/api/v1/mcp \\
                  --header "Authorization: Bearer $SIGNALS_API_KEY\""""
