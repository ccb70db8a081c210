"""`signals doctor`: health checks, each graded ok, warn (look at it) or fix (act on it).

It changes nothing: it neither creates a missing store nor migrates an old one.
"""

import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from pydantic import SecretStr

from access.billing.provider import BillingError, BillingSetupError, Provider
from compute.sources.files import FilesSource
from compute.sources.live import LiveSource
from compute.sources.source import Source, SourceError
from compute.universe import UniverseError, load_universe
from schemas.vocabulary import Clock
from service.commands.console import Finding, format_finding, format_names
from service.commands.doctor_live import check_live_source
from service.commands.doctor_quick import (
    check_billing_settings,
    check_disk,
    check_last_run,
    check_log,
    check_memberships,
    check_proxies,
    check_settings,
)
from service.config.billing import find_outage_reason, open_provider
from service.config.mail import check_mail
from service.config.settings import Settings, SettingsError
from service.config.sources import check_same_source, open_source
from service.config.stores import (
    ADOPT_HINT,
    IS_ANOTHER,
    RESTORE_HINT,
    StoreKind,
    describe_lost_keys,
    get_path,
    has_store,
    open_access,
    open_market,
)
from serving.snapshot import build_snapshot
from store.errors import StoreError
from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore

CONNECTION_HINT = "set SIGNALS_DATABASE_URL to a database that exists and accepts this user"


async def run_doctor(settings: Settings, clock: Clock) -> int:
    """Print one line per finding; return 1 if something must be fixed."""
    # Findings report the same problems that a source would log.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    has_failed = False
    async for finding in _run_checks(settings, clock):
        print(format_finding(finding))
        has_failed |= finding.grade == "fix"
    return 1 if has_failed else 0


async def _run_checks(settings: Settings, clock: Clock) -> AsyncIterator[Finding]:
    for finding in check_settings(settings):
        yield finding
    known_id: str | None = None
    market_findings = await _check_store(settings, "market")
    for finding in market_findings:
        yield finding
    if market_findings[0].grade == "ok":
        store = await open_market(settings)
        try:
            known_id = await store.find_access_id()
            yield check_last_run(build_snapshot(await store.snapshot()), clock())
            yield await check_log(settings, store)
            async for finding in _check_source(settings, store, clock):
                yield finding
        finally:
            await store.close()
    else:
        async for finding in _check_source(settings, None, clock):
            yield finding
    (access_finding,) = await _check_store(settings, "access")
    yield access_finding
    async with _open_access_store(settings, is_usable=access_finding.grade == "ok") as access_store:
        if access_finding.grade == "ok" and known_id not in (None, await access_store.get_id()):
            yield Finding("fix", "store", describe_lost_keys(settings, IS_ANOTHER))
        async for finding in _check_billing(settings, access_store, clock):
            yield finding
        for finding in await check_memberships(settings, access_store):
            yield finding
        yield await check_proxies(access_store, clock())
    async for finding in check_mail(settings):
        yield finding


async def _check_store(settings: Settings, kind: StoreKind) -> list[Finding]:
    """Check a store; the first finding grades it."""
    # Files created here would belong to the user of the doctor, and the service could not write
    # them. So nothing is opened until it is known to exist and to be up to date.
    is_market = kind == "market"
    hint = "`signals serve` creates one" if is_market else f"{RESTORE_HINT}, or {ADOPT_HINT}"
    if settings.is_sqlite:
        found = await _check_file(settings, kind, hint)
        return [found, check_disk(settings.market_path)] if is_market else [found]
    found = await _check_schema(settings, kind, hint)
    if not is_market or found.grade == "fix":
        return [found]
    from store.postgres.database_info import load_database_info
    from store.postgres.schema import SCHEMAS

    database_info = await load_database_info(
        settings.database_url.get_secret_value(), SCHEMAS["market"][0]
    )
    size = f"{database_info.size_bytes / 2**20:.0f} MiB"
    text = f"{found.text} (PostgreSQL {database_info.server_version}, {size})"
    computing = (
        "no process at the moment"
        if database_info.lock_holder is None
        else database_info.lock_holder
    )
    return [found._replace(text=text), Finding("ok", "computing", computing)]


async def _check_file(settings: Settings, kind: StoreKind, creation_hint: str) -> Finding:
    """Check a SQLite file."""
    from store.sqlite.copies import check_integrity
    from store.sqlite.schema import ACCESS_MIGRATIONS, MARKET_MIGRATIONS, list_applied_migrations

    migrations = {"market": MARKET_MIGRATIONS, "access": ACCESS_MIGRATIONS}[kind]
    path = get_path(settings, kind)
    try:
        if not await has_store(settings, kind):
            text = f"there is no store at {path.absolute()}: {creation_hint}"
            # The first start creates both files. If only the keys' is missing, they are lost.
            is_first_start = kind == "access" and not await has_store(settings, "market")
            return Finding("warn" if is_first_start else "fix", "store", text)
        pending_count = len(migrations) - len(list_applied_migrations(path, migrations))
        check_integrity(path, "quick_check")
    except StoreError as error:
        return Finding("fix", "store", f"{error} (to restore a backup, use `signals restore`)")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        return Finding("fix", "store", f"{path} and its folder must be writable by this user")
    if pending_count:
        text = f"{path} has an older schema: the next start copies and migrates it"
        return Finding("warn", "store", text)
    return Finding("ok", "store", f"{path} is intact and up to date")


async def _check_schema(settings: Settings, kind: StoreKind, creation_hint: str) -> Finding:
    """Check a schema of a PostgreSQL database."""
    from store.postgres.database_info import count_missing_migrations
    from store.postgres.schema import SCHEMAS

    schema, migrations = SCHEMAS[kind]
    name = f"{settings.store_name} ({schema})"
    try:
        pending_count = await count_missing_migrations(
            settings.database_url.get_secret_value(), schema, migrations
        )
    except StoreError as error:
        return Finding("fix", "store", f"{error} ({CONNECTION_HINT})")
    if pending_count == len(migrations):
        text = f"there is no store at {name}: {creation_hint}"
        # The first start creates both schemas. If only the keys' is missing, they are lost.
        is_first_start = kind == "access" and not await has_store(settings, "market")
        return Finding("warn" if is_first_start else "fix", "store", text)
    if pending_count:
        return Finding("warn", "store", f"{name} has an older schema: the next start migrates it")
    return Finding("ok", "store", f"{name} is up to date")


async def _check_source(
    settings: Settings, store: MarketStore | None, clock: Clock
) -> AsyncIterator[Finding]:
    """Check the source of bars; a live or a recorded one also if there is no store yet."""
    try:
        universe = load_universe(settings.universe)
        if settings.source == LiveSource.name:
            stored_source = None if store is None else (await store.progress()).source
            check_same_source(settings, stored_source, LiveSource.name)
            async for finding in check_live_source(settings, universe, store, clock):
                yield finding
        elif store is not None:
            async with open_source(settings, universe, store, clock) as source:
                yield _describe_source(source)
        elif settings.bars_folder is not None:
            recording = FilesSource(settings.bars_folder, universe)
            recording.check_begun(clock())
            yield _describe_source(recording)
    except (SettingsError, SourceError, StoreError, UniverseError) as error:
        yield Finding("fix", "source", str(error))


def _describe_source(source: Source) -> Finding:
    """Name the source, and what was left out of a recording."""
    faults: list[str] = []
    if isinstance(source, FilesSource):
        faults += [f"{rows} rows rejected: {why}" for why, rows in source.rejected_counts.items()]
        if source.ignored_names:
            faults.append(f"files ignored: {format_names(source.ignored_names)}")
    return Finding("warn" if faults else "ok", "source", "; ".join([source.name, *faults]))


@asynccontextmanager
async def _open_access_store(settings: Settings, *, is_usable: bool) -> AsyncIterator[AccessStore]:
    """Open the access store for the block, or an empty one if it cannot be used."""
    # Opening a store migrates it. The empty one lets the other checks run without that.
    with tempfile.TemporaryDirectory() as folder:
        empty = Settings(database_url=SecretStr(f"sqlite:///{folder}/empty.db"))
        store = await open_access(settings if is_usable else empty)
        try:
            yield store
        finally:
            await store.close()


async def _check_billing(
    settings: Settings, store: AccessStore, clock: Clock
) -> AsyncIterator[Finding]:
    try:
        provider = open_provider(settings, store, clock)
    except BillingSetupError as error:
        yield Finding("fix", "billing", str(error))
        return
    try:
        processor_finding = await _check_processor(provider)
        yield processor_finding
        if provider.name == "stripe" and processor_finding.grade == "ok":
            yield await _check_portal(provider)
    finally:
        await provider.close()
    for finding in check_billing_settings(settings):
        yield finding


async def _check_processor(provider: Provider) -> Finding:
    label = provider.name if provider.mode is None else f"{provider.name}, {provider.mode} mode"
    try:
        reason = await find_outage_reason(provider)
    except BillingSetupError as error:
        return Finding("fix", "billing", f"{label}: {error}")
    if reason is not None:
        text = f"{label}: the payment processor is not responding, so no one can buy ({reason})"
        return Finding("warn", "billing", text)
    return Finding("ok", "billing", label)


async def _check_portal(provider: Provider) -> Finding:
    try:
        await provider.check_portal()
    except (BillingSetupError, BillingError) as error:
        text = f"members cannot change or cancel their plan themselves: {error}"
        return Finding("warn", "billing", text)
    return Finding("ok", "billing", "members can open the customer portal")
