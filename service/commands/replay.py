"""`signals replay`: recorded bars, stepped into the store."""

from collections.abc import Sequence
from pathlib import Path

from compute.hourly_pipeline import Runs
from compute.indicators.contract import Indicator
from compute.schedule import last_run
from compute.sources.files import FilesSource
from compute.universe import load_universe
from schemas.vocabulary import instant
from service.commands.console import from_first, progress_bar, tell
from service.config.settings import Settings
from service.config.stores import open_market
from service.processes.executors import reached_crews
from service.processes.memory import one_heap


async def replay(
    settings: Settings, indicators: Sequence[Indicator], folder: Path, now: int
) -> int:
    """Step a folder's bars into the store up to the market time `now` (epoch ms)."""
    one_heap()
    crews = await reached_crews(settings)
    universe = load_universe(settings.universe)
    source = FilesSource(folder, universe)
    store = await open_market(settings)
    try:
        runs = Runs(store, source, universe, indicators, lambda: now, crews)
        await runs.prepare()
        with progress_bar("replaying") as progressed:
            await runs.catch_up(last_run(now), from_first(progressed))
        progress = await store.progress()
        at = "the beginning" if progress.market_time is None else instant(progress.market_time)
        rejected = sum(source.rejected.values())
        tell(f"replayed {source.name} to {at}; {rejected} rows rejected")
    finally:
        await store.close()
    return 0
