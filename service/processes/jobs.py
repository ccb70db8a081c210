"""The background jobs of the service: the hourly compute and the daily maintenance.

They run in the compute process, or in the serving one with `--single-process`.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from access.maintenance import MaintenanceJob
from schemas.vocabulary import Clock
from service.commands.console import OpenProgressBar, open_progress_bar
from service.config.settings import Settings
from service.config.stores import refuse_wrong_clock
from service.processes.lifecycle import run_in_background
from service.processes.steady_clock import COMPUTE_HOLD_MS, DELETE_HOLD_MS, make_steady

if TYPE_CHECKING:
    from service.commands.compute_command import RunObserver
    from service.http.resources import Resources


async def run_jobs(
    settings: Settings,
    resources: "Resources",
    clock: Clock,
    elapsed: Clock | None,
    observer: "RunObserver",
    *,
    computes: bool,
    on_open: Callable[[], None] = lambda: None,
    open_bar: OpenProgressBar = open_progress_bar,
) -> None:
    """Run the maintenance, and compute if `computes`, until cancelled.

    `clock` is the wall clock, `elapsed` as for `make_steady`. `on_open` is called when everything
    is opened, so that no mistake in the settings is left.
    """
    # The maintenance would delete by it, before or without a run.
    await refuse_wrong_clock(settings, resources.market, clock())
    if settings.is_sqlite:
        from store.sqlite.copies import keep_spare

        await asyncio.to_thread(keep_spare, settings.market_path)
    compute_clock = make_steady(clock, elapsed, COMPUTE_HOLD_MS)
    maintenance = MaintenanceJob(
        resources.access,
        resources.provider,
        make_steady(clock, elapsed, DELETE_HOLD_MS),
        asyncio.sleep,
    )
    async with AsyncExitStack() as stack:
        if computes:
            # Imported here, because a process that only serves has no use for the compute side.
            from service.commands.compute_command import run_compute

            opened = asyncio.Event()
            computing = run_compute(
                settings,
                resources.market,
                compute_clock,
                observer,
                on_open=opened.set,
                open_bar=open_bar,
            )
            await stack.enter_async_context(run_in_background(computing))
            await opened.wait()
        on_open()
        await maintenance.run()
