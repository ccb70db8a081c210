"""`signals replay`, `audit` and `migrate`, and `log restart`: the history in the store.

And `signals import`: turns files of bars as people have them into a folder of recorded bars.
"""

import asyncio
from argparse import Namespace
from contextlib import AsyncExitStack
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from compute.audit.audit import audit_market
from compute.executor import find_executor
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.schedule import find_last_run
from compute.signing.log_signer import load_key, move_key
from compute.sources.files import FilesSource
from compute.sources.history_checks import check_recorded_past
from compute.universe import load_universe
from schemas.version import describe_install
from schemas.vocabulary import Clock, format_instant
from service.commands.console import (
    FOUND,
    ProgressLog,
    echo,
    open_progress_bar,
    print_findings,
    rebase_progress,
)
from service.config.settings import Settings, SettingsError
from service.config.sources import build_log_signer
from service.config.stores import (
    adopt_access,
    find_market_trace,
    has_store,
    open_access,
    open_both,
    open_market,
    refuse_missing_market,
    refuse_missing_store,
)
from service.processes.lifecycle import limit_malloc
from verifier.report import escape_unprintable

COLUMNS = ("time", "clock", "open", "high", "low", "close", "volume")


async def replay_bars(settings: Settings, folder: Path, now: int) -> int:
    """Compute a folder of bars into the store, up to the market time `now` (epoch ms)."""
    limit_malloc()
    open_executor = await find_executor(settings.dask_scheduler)
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
            INDICATORS,
            lambda: now,
            open_executor,
            sign_log=build_log_signer(settings, store, lambda: now).sign,
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


async def audit_store(settings: Settings) -> int:
    """Audit the store; print the checks and each finding.

    Return 1 if there are findings, 2 if there are none but some things could not be verified.
    """
    universe = load_universe(settings.universe)
    open_executor = await find_executor(settings.dask_scheduler)
    # Only the market data: they can be audited as a copy that contains no keys.
    await refuse_missing_market(settings)
    log_key = await asyncio.to_thread(load_key, settings.log_key_path)
    async with open_market(settings) as store:
        with open_progress_bar("auditing") as on_progress:
            report = await audit_market(
                store, universe, INDICATORS, open_executor, on_progress, log_key
            )
    return print_findings(report.checked, report.findings, not_verifiable=report.not_verifiable)


async def migrate_database(
    source: Settings,
    target: Settings,
    clock: Clock,
) -> int:
    """Move a database; return 1 if the audit has findings.

    The key file of the log moves too, so that only the target continues the log. StoreError if a
    process computes on either database, or if the target is in use.
    """
    if source.store_name == target.store_name:
        raise SettingsError(f"both databases are {source.store_name}: name two different ones")
    open_executor = await find_executor(target.dask_scheduler)
    await refuse_missing_store(source)
    async with AsyncExitStack() as stack:
        source_market = await stack.enter_async_context(open_market(source))
        target_market = await stack.enter_async_context(open_market(target))
        with open_progress_bar("moving", fallback=ProgressLog("moving", clock)) as on_progress:
            await target_market.move_from(source_market, on_progress)
        source_access = await stack.enter_async_context(open_access(source))
        target_access = await stack.enter_async_context(open_access(target))
        await target_access.move_from(source_access)
        await target_market.record_access_id(await target_access.get_id())
        universe = load_universe(target.universe)
        with open_progress_bar("auditing", fallback=ProgressLog("auditing", clock)) as on_progress:
            report = await audit_market(
                target_market, universe, INDICATORS, open_executor, on_progress
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


async def restart_log(settings: Settings, clock: Clock) -> int:
    """Begin a new log with another key; print the key. StoreError if a process computes.

    If the market data were lost, begin a new history too.
    """
    if not (find_market_trace(settings) or await has_store(settings, "access")):
        await refuse_missing_market(settings)
    if not await has_store(settings, "market"):
        await adopt_access(settings)
        echo("A new history begins: the market data were lost.")
    async with open_market(settings) as market:
        await market.lock()
        vkey, archive = await build_log_signer(settings, market, clock).restart(
            datetime.fromtimestamp(clock() / 1000, UTC)
        )
    if archive is not None:
        echo(f"The former key is in {archive}.")
    echo(
        f"A new log begins as {vkey.name}, with another key. Customers who verified the former "
        "log have to accept the new key:"
    )
    print(vkey)
    return 0


def import_bars(settings: Settings, args: Namespace) -> int:
    """Read files, judge their bars and write them; return 1 if anything is doubtful."""
    try:
        # Only here, because the library that reads the files is an extra.
        from compute.sources.bar_formats import FormatOptions
        from compute.sources.bar_import import BarImport, ImportOptions
    except ImportError as error:
        raise SettingsError(
            f"signals import needs the extra libraries ({error.name} is missing): "
            f"{describe_install('import')}"
        ) from None
    formats = FormatOptions(
        dict(
            _parse_pair(text, "=", "time=Date") for text in (args.columns or "").split(",") if text
        ),
        _parse_zone(args.zone),
        args.decimal,
        args.dates,
    )
    if unknown := [name for name in formats.columns if name not in COLUMNS]:
        raise SettingsError(f"--columns has no {unknown[0]!r}; it names {', '.join(COLUMNS)}")
    splits = [_parse_pair(text, ":", "2024-06-10:10") for text in args.split]
    bars = BarImport(
        args.to,
        load_universe(settings.universe),
        ImportOptions(
            args.ticker,
            formats,
            args.stamp,
            args.repeated,
            {_parse_day(day): _parse_ratio(ratio) for day, ratio in splits},
            frozenset(map(_parse_day, args.accept_jump)),
        ),
    )
    for path in args.paths:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            bars.read(file)
    bars.judge()
    for line in bars.lines:
        print(line)
    for doubt in bars.doubts:
        print(f"doubtful: {doubt}")
    if bars.doubts:
        echo(f"Nothing is written: {len(bars.doubts)} doubtful.")
        return FOUND
    if args.dry_run:
        echo("Nothing is written, because of --dry-run.")
        return 0
    bars.write()
    echo(f"Written. Start with SIGNALS_SOURCE=files:{args.to}, or replay with --bars {args.to}.")
    return 0


def _parse_pair(text: str, mark: str, example: str) -> tuple[str, str]:
    left, found, right = text.partition(mark)
    if not (left and found and right):
        raise SettingsError(f"{text!r} is not of the form {example}")
    return left.strip(), right.strip()


def _parse_zone(name: str | None) -> str | None:
    try:
        return None if name is None else ZoneInfo(name).key
    except (ValueError, OSError, KeyError):
        raise SettingsError(f"--zone {name!r} is no time zone, such as Europe/Berlin") from None


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a day, such as 2024-06-10") from None


def _parse_ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 0.0001 <= ratio <= 10_000:
        raise SettingsError(f"{text!r} is not a number of new shares for an old one, such as 10")
    return ratio
