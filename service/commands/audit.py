"""`signals audit`: recomputes everything published from the stored bars."""

import asyncio
from collections.abc import Sequence

from compute.audit.audit import audit_market
from compute.indicators.contract import Indicator
from compute.signing.log_signer import load_key
from compute.universe import load_universe
from service.commands.console import open_progress_bar, print_findings
from service.config.settings import Settings
from service.config.stores import open_market, refuse_missing_market
from service.processes.executors import find_executor


async def audit_store(settings: Settings, indicators: Sequence[Indicator]) -> int:
    """Audit the store; print what was checked and each finding.

    Return 1 if there are findings, 2 if there are none but some things could not be verified.
    """
    universe = load_universe(settings.universe)
    open_executor = await find_executor(settings)
    # Only the market data: they can be audited as a copy that contains no keys.
    await refuse_missing_market(settings)
    log_key = await asyncio.to_thread(load_key, settings.log_key_path)
    store = await open_market(settings)
    try:
        with open_progress_bar("auditing") as on_progress:
            report = await audit_market(
                store, universe, indicators, open_executor, on_progress, log_key
            )
    finally:
        await store.close()
    return print_findings(report.checked, report.findings, not_verifiable=report.not_verifiable)
