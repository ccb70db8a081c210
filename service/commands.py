"""The commands that do their work and end: replay, audit (of store or public), prune, connect."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from access.upkeep import horizons
from compute.audit import Audit
from compute.indicators.contract import Indicator
from compute.runs import Runs
from compute.schedule import last_run
from compute.sources.files import FilesSource
from compute.universe import load_universe
from rest_shim.registration import CLIENTS, COMMAND, Client
from schemas.vocabulary import instant
from service.public_audit.audit import public_audit
from service.public_audit.reader import Reader
from service.settings import Settings
from store.protocol import StoreError
from store.sqlite import SqliteMarketStore
from store.sqlite_access import SqliteAccessStore

SHOWN_FINDINGS = 100


def tell(text: str) -> None:
    """Say something to the operator, whose standard output is left to what a command gives."""
    # In one piece, for other processes may be telling something too.
    sys.stderr.write(f"{text}\n")


def progress_bar() -> Progress:
    """Return a progress bar on standard error; it draws on a terminal only."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal)


async def replay(
    settings: Settings, indicators: Sequence[Indicator], folder: Path, now: int
) -> int:
    """Step a folder's bars into the store up to the market time `now` (epoch ms)."""
    universe = load_universe(settings.universe)
    source = FilesSource(folder, universe)
    store = await SqliteMarketStore.open(settings.market_path)
    try:
        runs = Runs(store, source, universe, indicators, lambda: now)
        await runs.prepare()
        await catch_up(runs, last_run(now), "replaying")
        progress = await store.progress()
        at = "the beginning" if progress.market_time is None else instant(progress.market_time)
        rejected = sum(source.rejected.values())
        tell(f"replayed {source.name} to {at}; {rejected} rows rejected")
    finally:
        await store.close()
    return 0


async def catch_up(runs: Runs, until: int, what: str) -> None:
    """Run every hour that is due up to an hour, with a progress bar."""
    with progress_bar() as bar:
        task = bar.add_task(what, total=None)
        first: list[int] = []

        def progressed(done: int, end: int) -> None:
            first.append(done)
            bar.update(task, completed=done - first[0], total=max(end - first[0], 1))

        await runs.catch_up(until, progressed)


async def existing_store(settings: Settings) -> SqliteMarketStore:
    """Open the store; StoreError where there is none, so that no command succeeds on nothing."""
    if not settings.market_path.exists():
        raise StoreError(
            f"there is no store at {settings.market_path}: set SIGNALS_DATABASE_URL, "
            "or fill one with `signals replay --bars DIR`"
        )
    return await SqliteMarketStore.open(settings.market_path)


async def audit(settings: Settings, indicators: Sequence[Indicator]) -> int:
    """Audit the store; print what was checked, name what is wrong; 1 where anything is."""
    universe = load_universe(settings.universe)
    store = await existing_store(settings)
    try:
        with progress_bar() as bar:
            task = bar.add_task("auditing", total=None)
            report = await Audit(store, universe, indicators).run(
                lambda done, end: bar.update(task, completed=done, total=end)
            )
    finally:
        await store.close()
    notes = [f"not verifiable: {what} ({n})" for what, n in report.not_verifiable.items()]
    return _told(report.checked, notes, report.findings)


async def audit_in_public(url: str, api_key: str, days: int) -> int:
    """Audit a running service through its REST interface alone; 1 where views disagree."""
    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)
        reader = Reader(
            url, api_key, lambda done, total: bar.update(task, completed=done, total=total)
        )
        async with reader:
            report = await public_audit(reader, days)
    notes = [f"not checked: {what} ({n})" for what, n in report.not_checked.items()]
    counted = f"{reader.counted_calls} of them counted against the key's daily quota"
    return _told(report.checked, [*notes, f"{reader.calls} calls, {counted}"], report.findings)


def _told(checked: Mapping[str, int], notes: Iterable[str], findings: Sequence[str]) -> int:
    """Print what was checked and what is wrong; return the exit status."""
    print("checked:", ", ".join(f"{count} {what}" for what, count in checked.items()))
    for note in notes:
        print(note)
    for finding in findings[:SHOWN_FINDINGS]:
        print(finding)
    if len(findings) > SHOWN_FINDINGS:
        print(f"and {len(findings) - SHOWN_FINDINGS} more")
    print("clean" if not findings else f"{len(findings)} findings")
    return 1 if findings else 0


async def prune(settings: Settings, clock: Callable[[], int]) -> int:
    """Delete rows beyond their retention; print how many. `clock` tells epoch milliseconds."""
    async with AsyncExitStack() as opened:
        market = await existing_store(settings)
        opened.push_async_callback(market.close)
        pruned = await market.prune()
        if settings.access_path.exists():
            access = await SqliteAccessStore.open(settings.access_path)
            opened.push_async_callback(access.close)
            pruned += await access.prune(horizons(clock()))
    print(f"pruned {pruned} rows")
    return 0


def connect(client: Client | None, address: str) -> int:
    """Print what registers a service with a client, or list the clients without one."""
    if client is None:
        for known in CLIENTS:
            print(known.name, f"{known.title}, {known.where}", sep="\t")
        return 0
    tell(client.told)
    called = Path(sys.argv[0])
    # Programs with a desktop search other folders for commands than shells do.
    command = str(called.absolute()) if called.name == COMMAND else COMMAND
    print(client.lines(address, command), end="")
    return 0
