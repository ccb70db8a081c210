"""`signals migrate`: all that one database holds, moved into another one and verified there."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from compute.audit.audit import Audit
from compute.indicators.contract import Indicator
from compute.universe import load_universe
from schemas.clock import Clock
from service.commands.console import Lines, print_findings, progress_bar, tell
from service.config.settings import Settings, SettingsError
from service.config.stores import existing_market, open_access, open_market
from service.processes.executors import reached_crews


async def migrate(
    source: Settings,
    target: Settings,
    indicators: Sequence[Indicator],
    clock: Clock,
) -> int:
    """Move it, or the rest of it; 1 where what was moved is not what was published.

    `clock` tells epoch ms. StoreError where a process computes on either, or the target is in use.
    """
    if source.store_name == target.store_name:
        raise SettingsError(f"both databases are {source.store_name}: name two")
    crews = await reached_crews(target)
    async with AsyncExitStack() as opened:
        held = await existing_market(source)
        opened.push_async_callback(held.close)
        market = await open_market(target)
        opened.push_async_callback(market.close)
        with progress_bar("moving", otherwise=Lines("moving", clock)) as progressed:
            await market.move_from(held, progressed)
        keys = await open_access(source)
        opened.push_async_callback(keys.close)
        access = await open_access(target)
        opened.push_async_callback(access.close)
        await access.move_from(keys)
        async with crews() as crew:
            with progress_bar("auditing", otherwise=Lines("auditing", clock)) as progressed:
                audit = Audit(market, load_universe(target.universe), indicators, crew)
                report = await audit.run(progressed)
        notes = [f"not verifiable: {what} ({n})" for what, n in report.not_verifiable.items()]
        if status := print_findings(report.checked, notes, report.findings):
            return status
        await market.finish_move()
    tell(f"Moved {source.store_name} to {target.store_name}: set SIGNALS_DATABASE_URL to it.")
    return 0
