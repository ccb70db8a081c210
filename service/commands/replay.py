"""`signals replay`: computes recorded bars into the store."""

from collections.abc import Sequence
from pathlib import Path

from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Indicator
from compute.schedule import find_last_run
from compute.sources.files import FilesSource
from compute.sources.history_checks import check_recorded_past
from compute.universe import load_universe
from schemas.vocabulary import format_instant
from service.commands.console import echo, open_progress_bar, rebase_progress
from service.config.settings import Settings
from service.config.signing import build_log_signer
from service.config.stores import open_both
from service.processes.executors import find_executor
from service.processes.lifecycle import limit_malloc_arenas
from verifier.report import escape_unprintable


async def replay_bars(
    settings: Settings, indicators: Sequence[Indicator], folder: Path, now: int
) -> int:
    """Compute a folder of bars into the store, up to the market time `now` (epoch ms)."""
    limit_malloc_arenas()
    open_executor = await find_executor(settings)
    universe = load_universe(settings.universe)
    source = FilesSource(folder, universe)
    source.check_begun(now)
    async with open_both(settings) as (store, access):
        await access.close()
        await check_recorded_past(store, source, universe)
        pipeline = await HourlyPipeline.open(
            store,
            source,
            universe,
            indicators,
            lambda: now,
            open_executor,
            sign_log=build_log_signer(settings, store).sign,
        )
        with open_progress_bar("replaying") as on_progress:
            await pipeline.run_until(find_last_run(now), rebase_progress(on_progress))
        # Otherwise the rows of a long recording would outlive their retention: nothing else prunes
        # a store that is only read.
        await store.prune()
        progress = await store.progress()
        reached_time = (
            "the beginning"
            if progress.market_time is None
            else format_instant(progress.market_time)
        )
        rejected = sum(source.rejected_counts.values())
        name = escape_unprintable(source.name)
        echo(f"replayed {name} to {reached_time}; {rejected} rows rejected")
    return 0
