"""`signals migrate`: moves everything to another database, and audits it there."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from compute.audit.audit import audit_market
from compute.indicators.contract import Indicator
from compute.signing.log_signer import move_key
from compute.universe import load_universe
from schemas.vocabulary import Clock
from service.commands.console import FOUND, ProgressLog, echo, open_progress_bar, print_findings
from service.config.settings import Settings, SettingsError
from service.config.stores import open_access, open_market, refuse_missing_store
from service.processes.executors import find_executor


async def migrate_database(
    source: Settings,
    target: Settings,
    indicators: Sequence[Indicator],
    clock: Clock,
) -> int:
    """Move a database; return 1 if the audit has findings.

    The key file of the log moves too, so that only the target continues the log. StoreError if a
    process computes on either database, or if the target is in use.
    """
    if source.store_name == target.store_name:
        raise SettingsError(f"both databases are {source.store_name}: name two different ones")
    open_executor = await find_executor(target)
    await refuse_missing_store(source)
    async with AsyncExitStack() as stack:
        source_market = await open_market(source)
        stack.push_async_callback(source_market.close)
        target_market = await open_market(target)
        stack.push_async_callback(target_market.close)
        with open_progress_bar("moving", fallback=ProgressLog("moving", clock)) as on_progress:
            await target_market.move_from(source_market, on_progress)
        source_access = await open_access(source)
        stack.push_async_callback(source_access.close)
        target_access = await open_access(target)
        stack.push_async_callback(target_access.close)
        await target_access.move_from(source_access)
        await target_market.record_access_id(await target_access.get_id())
        universe = load_universe(target.universe)
        with open_progress_bar("auditing", fallback=ProgressLog("auditing", clock)) as on_progress:
            report = await audit_market(
                target_market, universe, indicators, open_executor, on_progress
            )
        print_findings(report.checked, report.findings, not_verifiable=report.not_verifiable)
        # Until `finish_move` nothing can compute on the target. Findings leave it in that state,
        # but the move of a store that is partly not verifiable ends.
        if report.findings:
            return FOUND
        if move_key(source.log_key_path, target.log_key_path):
            echo(f"The key of the log is now in {target.log_key_path}.")
        await target_market.finish_move()
    echo(f"Moved {source.store_name} to {target.store_name}. Set SIGNALS_DATABASE_URL to it.")
    return 0
