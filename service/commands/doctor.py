"""`signals doctor`: what is well (ok), what to look at (warn) and what must be mended (fix).

It changes nothing: a store that is missing stays missing, one that is behind is not migrated.
"""

import logging
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import structlog
from pydantic import SecretStr

from access.billing.provider import BillingError, BillingSetupError, Provider
from compute.sources.live import LiveSource
from compute.sources.source import SourceError
from compute.universe import UniverseError, load_universe
from schemas.clock import Clock
from schemas.vocabulary import DAY_MS, instant
from service.commands.console import Finding, named
from service.commands.doctor_live import live_findings
from service.config.billing import open_billing, unreachable
from service.config.mail import mail_findings
from service.config.settings import PREFIX, Settings, SettingsError
from service.config.sources import check_known, opened_source
from service.config.stores import Part, open_access, open_market
from serving.forwarded_for import NOTICE
from serving.freshness import is_resting, is_stale
from serving.snapshot_cache import Board, computed_board
from store.access_protocol import AccessStore
from store.errors import MarketStore


async def doctor(settings: Settings, clock: Clock) -> int:
    """Print a line a finding; 1 where something must be fixed. `clock` tells epoch ms."""
    # What a source would log is among the findings.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    is_ill = False
    async for finding in _findings(settings, clock):
        print(f"{finding.grade:4} {finding.about}: {finding.text}")
        is_ill |= finding.grade == "fix"
    return 1 if is_ill else 0


async def _findings(settings: Settings, clock: Clock) -> AsyncIterator[Finding]:
    given = ", ".join(sorted(PREFIX + name.upper() for name in settings.model_fields_set))
    yield Finding("ok", "settings", f"{given or 'all by default'}; served at {settings.address}")
    market = await _store(settings, "market")
    for finding in market:
        yield finding
    if market[0].grade == "ok":
        store = await open_market(settings)
        try:
            yield _run(computed_board(await store.snapshot()), clock())
            async for finding in _source(settings, store, clock):
                yield finding
        finally:
            await store.close()
    elif settings.source == LiveSource.name:
        async for finding in _source(settings, None, clock):
            yield finding
    (access,) = await _store(settings, "access")
    yield access
    async with _access_store(settings, is_usable=access.grade == "ok") as keys:
        async for finding in _billing(settings, keys, clock):
            yield finding
        yield await _proxies(keys, clock())
    async for finding in mail_findings(settings):
        yield finding


async def _store(settings: Settings, part: Part) -> list[Finding]:
    """Look at what holds a part, the verdict first."""
    if settings.is_sqlite:
        from service.commands.doctor_sqlite import access_findings, market_findings
    else:
        from service.commands.doctor_postgres import access_findings, market_findings
    return await {"market": market_findings, "access": access_findings}[part](settings)


def _run(board: Board | None, now: int) -> Finding:
    if board is None:
        return Finding("warn", "runs", "nothing was computed yet: start `signals serve`")
    last = f"the last run was {_ago(now - board.market_time)} ago ({instant(board.market_time)})"
    if is_resting(board):
        return Finding("ok", "runs", f"{last}; the recording is played to its end")
    if is_stale(board, now):
        return Finding("warn", "runs", f"{last}: start `signals serve` or `signals compute`")
    if late := board.snapshot.late:
        text = f"{last}; bars of {len(late)} assets are late ({named(late)})"
        return Finding("warn", "runs", text)
    return Finding("ok", "runs", last)


async def _source(
    settings: Settings, store: MarketStore | None, clock: Clock
) -> AsyncIterator[Finding]:
    """Look at the source of a store's bars, at live ones also before there is a store."""
    try:
        universe = load_universe(settings.universe)
        if settings.source == LiveSource.name:
            known = None if store is None else (await store.progress()).source
            check_known(settings, known, LiveSource.name)
            async for finding in live_findings(settings, universe, store, clock):
                yield finding
        elif store is not None:
            async with opened_source(settings, universe, store, clock) as source:
                yield Finding("ok", "source", source.name)
    except (SettingsError, SourceError, UniverseError) as error:
        yield Finding("fix", "source", str(error))


@asynccontextmanager
async def _access_store(settings: Settings, *, is_usable: bool) -> AsyncIterator[AccessStore]:
    """Hold the access store, or an empty one where it cannot be opened as it is."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Settings(database_url=SecretStr(f"sqlite:///{folder}/empty.db"))
        store = await open_access(settings if is_usable else empty)
        try:
            yield store
        finally:
            await store.close()


async def _billing(settings: Settings, store: AccessStore, clock: Clock) -> AsyncIterator[Finding]:
    try:
        provider = open_billing(settings, store, clock)
    except BillingSetupError as error:
        yield Finding("fix", "billing", str(error))
        return
    try:
        processor = await _processor(provider)
        yield processor
        if provider.name == "stripe" and processor.grade == "ok":
            yield await _portal(provider)
    finally:
        await provider.close()
    if provider.name == "sandbox" and not settings.is_local:
        text = "sandbox gives keys away to all who reach this service (SIGNALS_SANDBOX_PUBLIC=1)"
        yield Finding("warn", "billing", text)
    if provider.name == "stripe":
        for finding in _reachable(settings):
            yield finding


async def _processor(provider: Provider) -> Finding:
    what = provider.name if provider.mode is None else f"{provider.name}, {provider.mode} mode"
    try:
        why = await unreachable(provider)
    except BillingSetupError as error:
        return Finding("fix", "billing", f"{what}: {error}")
    if why is not None:
        text = f"{what}: cannot be asked at the moment, so nobody can buy ({why})"
        return Finding("warn", "billing", text)
    return Finding("ok", "billing", what)


async def _portal(provider: Provider) -> Finding:
    try:
        await provider.check_portal()
    except (BillingSetupError, BillingError) as error:
        text = f"members cannot change or cancel what they bought by themselves: {error}"
        return Finding("warn", "billing", text)
    return Finding("ok", "billing", "members get into the customer portal")


def _reachable(settings: Settings) -> Iterator[Finding]:
    """Look at what Stripe and the buyer's browser need of us."""
    yield Finding("ok", "billing", "SIGNALS_STRIPE_WEBHOOK_SECRET is set")
    if settings.base_url is None or not settings.base_url.startswith("https://"):
        text = (
            "SIGNALS_BASE_URL is not a public https:// address: Stripe cannot send webhooks, and "
            "buyers do not come back from its pay page"
        )
        yield Finding("warn", "billing", text)


async def _proxies(store: AccessStore, now: int) -> Finding:
    seen = {notice.name: notice for notice in await store.notices()}.get(NOTICE)
    if seen is None or now - seen.at > DAY_MS:
        return Finding("ok", "proxies", "no X-Forwarded-For of an unknown proxy within a day")
    text = (
        f"{seen.detail} sends X-Forwarded-For and is not among SIGNALS_TRUSTED_PROXIES: all "
        "clients behind it share one throttle (if it is your proxy, name it there)"
    )
    return Finding("warn", "proxies", text)


def _ago(ms: int) -> str:
    hours, minutes = divmod(max(ms, 0) // 60_000, 60)
    if hours < 2:
        return f"{60 * hours + minutes} minutes"
    return f"{hours} hours" if hours < 48 else f"{hours // 24} days"
