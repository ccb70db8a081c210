"""`signals serve --workers N`: N processes serve one port, one more computes, this one watches.

uvicorn's own supervisor starts those that serve, replaces one that dies, and hears the signals.
"""

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from socket import socket

import structlog
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from compute.indicators.contract import Indicator
from schemas.clock import Clock
from service.commands.console import tell
from service.commands.serve import check_billing, welcome
from service.config.settings import Settings
from service.http.metrics import counted_together
from service.http.metrics_server import Operations, operations_port
from service.http.resources import opened_parts
from service.http.server import listen, server_config
from service.processes.compute_process import Computer, deaf_to_terminals
from service.processes.shutdown import stoppable
from service.processes.worker import Worker

# What starts up on a busy machine is not hung.
ANSWERS_WITHIN_S = 30
# asyncio takes as many connections a turn as it would make their queue long: one worker would take
# them all.
TAKEN_A_TURN = 1

log = structlog.get_logger("service")


async def serve_by_workers(
    settings: Settings,
    workers: int,
    indicators: Sequence[Indicator],
    clock: Clock,
    *,
    computes: bool = True,
) -> int:
    """Serve by so many processes, and compute in one more, until interrupted.

    Return 1 where one of them cannot start; raise what the computing one fails with.
    """
    async with AsyncExitStack() as opened:
        stop = opened.enter_context(stoppable())
        listener = opened.enter_context(closing(listen(settings.host, settings.port)))
        operations = opened.enter_context(shared_operations(settings))
        with stop.ends():
            async with opened_parts(settings, clock) as parts:
                await check_billing(parts)
                is_first_start = (await parts.market.progress()).market_time is None
                computer = Computer(settings, indicators, clock, computes, operations)
                opened.callback(computer.end)
                if is_first_start:
                    await computer.caught_up()
                tell(await welcome(settings, parts, clock))
            return Supervisor(settings, workers, clock, listener, computer).supervise()
    return 0


@contextmanager
def shared_operations(settings: Settings) -> Iterator[Operations]:
    """Take the operations port for the process that computes, which tells of all of them there."""
    with operations_port(settings) as listener:
        if listener is None:
            yield Operations(None)
            return
        with counted_together() as folder:
            yield Operations(listener, folder)


class Supervisor(Multiprocess):
    """Watches the serving processes and the computing one."""

    # The end of a terminal ends it, as it ends a single process.
    handle_hup = Multiprocess.handle_term

    def __init__(
        self,
        settings: Settings,
        workers: int,
        clock: Clock,
        listener: socket,
        computer: Computer,
    ) -> None:
        """Hear signals from now on; `clock` tells epoch milliseconds."""
        super().__init__(worker_config(Worker(settings, clock), workers), [listener])
        self._computer = computer

    def supervise(self) -> int:
        """Serve until interrupted; return the status."""
        try:
            self.run()
        finally:
            self.terminate_all()
            self.join_all()
        has_failed = any(process.exitcode == STARTUP_FAILURE for process in self.processes)
        return 1 if has_failed else 0

    def init_processes(self) -> None:
        """Start those that serve."""
        with deaf_to_terminals():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        """Begin anew what has died; raise what the computing one failed with."""
        self._computer.watch()
        before = tuple(self.processes)
        for process in before:
            # With this copy open, one killed amid an answer would be waited for as if hung.
            process.child_conn.close()
        with deaf_to_terminals():
            super().keep_subprocess_alive()
        for old, new in zip(before, self.processes, strict=True):
            if new is not old:
                log.warning("serving_again", died=old.pid, status=old.exitcode)


def worker_config(app: Worker, workers: int) -> uvicorn.Config:
    """Return how each of so many workers serves."""
    config = server_config(app)
    config.lifespan = "on"
    config.workers = workers
    config.backlog = TAKEN_A_TURN
    config.timeout_worker_healthcheck = ANSWERS_WITHIN_S
    return config
