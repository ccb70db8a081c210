"""The resources that a process holds open: both stores, the billing provider, the mailer.

And the daily maintenance of both stores, with a look at the certificate; and the notices for the
operator in the store of keys, about things that no caller sees: refused webhooks, mail that failed,
backups, and the end of the certificate. `signals doctor`, the operations page and the metrics read
them.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Final
from urllib.parse import urlsplit

import structlog

from access.billing.provider import Provider
from access.mail import Mailer, MailError
from access.maintenance import MaintenanceJob
from access.oauth.clients import ClientDocuments
from schemas.errors import ApiError, describe_failure
from schemas.vocabulary import HOUR_MS, Clock
from service.config.providers import open_mailer, open_provider
from service.config.settings import Settings
from service.config.stores import (
    CERTIFICATE_NOTICE,
    MAIL_NOTICE,
    WEBHOOK_NOTICE,
    open_both,
    refuse_wrong_clock,
)
from service.processes.lifecycle import run_in_background
from service.processes.steady_clock import DELETE_HOLD_MS, make_steady
from store.access_rows import Notice
from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore
from store.store_errors import StoreError

# Anybody can cause refused webhooks, so each notice is written at most this often.
PAUSE_MS = 60_000
CONNECT_TIMEOUT_S = 10.0
CERTIFICATE_PAUSE_S = 6 * HOUR_MS / 1000

log = structlog.get_logger("operations")


@dataclass(frozen=True, slots=True)
class Resources:
    """Both stores, the billing provider, the mailer, the wall clock (epoch ms) and a sleep (s).

    `client_documents` fetches the documents of OAuth clients, None if none are accepted. `source`
    is the source of the bars that the market store remembers, None if it has none yet.
    """

    market: MarketStore
    access: AccessStore
    provider: Provider
    mailer: Mailer
    clock: Clock
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    client_documents: ClientDocuments | None = None
    source: str | None = None


@asynccontextmanager
async def open_resources(settings: Settings, clock: Clock) -> AsyncIterator[Resources]:
    """Open the resources that the settings name, creating missing stores; close them at the end."""
    async with AsyncExitStack() as stack:
        market, access = await stack.enter_async_context(open_both(settings))
        provider = open_provider(settings, access, clock)
        stack.push_async_callback(provider.close)
        client_documents = None
        if settings.oauth_client_documents == "on":
            client_documents = ClientDocuments(clock)
            stack.push_async_callback(client_documents.close)
        mailer = open_mailer(settings)
        yield Resources(
            market,
            access,
            provider,
            mailer,
            clock,
            client_documents=client_documents,
            source=(await market.progress()).source,
        )


async def run_maintenance(
    settings: Settings,
    resources: Resources,
    clock: Clock,
    elapsed: Clock | None,
    on_open: Callable[[], None] = lambda: None,
) -> None:
    """Delete old rows of the access store every day, until cancelled.

    `clock` is the wall clock, `elapsed` as for `make_steady`. `on_open` is called when nothing is
    left to refuse.
    """
    # It would delete by it, before or without a run.
    await refuse_wrong_clock(settings, resources.market, clock())
    if settings.is_sqlite:
        from store.sqlite.database_files import keep_spare

        await asyncio.to_thread(keep_spare, settings.market_path)
    on_open()
    steady_clock = make_steady(clock, elapsed, DELETE_HOLD_MS)
    job = MaintenanceJob(resources.access, resources.provider, steady_clock, asyncio.sleep)
    async with AsyncExitStack() as stack:
        if settings.address.startswith("https://"):
            watching = watch_certificate(settings.address, NoticeKeeper(resources.access, clock))
            await stack.enter_async_context(run_in_background(watching))
        await job.run()


@dataclass
class NoticeKeeper:
    """Keeps the newest notice of each name; a store that fails is only logged."""

    store: AccessStore
    clock: Clock
    kept_at: dict[str, int] = field(default_factory=dict)

    async def keep(self, name: str, detail: str) -> None:
        """Replace the notice of this name, unless that was done in the last minute."""
        now = self.clock()
        # Earlier than the last one, if the clock was set back.
        if abs(now - self.kept_at.get(name, now - PAUSE_MS)) < PAUSE_MS:
            return
        self.kept_at[name] = now
        try:
            await self.store.put_notice(Notice(name, detail, now))
        except StoreError as error:
            log.warning("notice_not_kept", notice=name, **describe_failure(error))


class WatchedMailer:
    """A mailer that reports each mail as sent, delayed, refused or failed; it keeps the failure."""

    def __init__(
        self, mailer: Mailer, notices: NoticeKeeper, on_mail: Callable[[str], None]
    ) -> None:
        self._mailer: Final = mailer
        self._notices: Final = notices
        self._on_mail: Final = on_mail
        self.check: Final = mailer.check

    async def send(self, mail: EmailMessage) -> None:
        """Send a mail; MailError if it was not accepted."""
        try:
            await self._mailer.send(mail)
        except MailError as error:
            # A delayed mail is sent again, and a closed mailbox is its owner's matter.
            outcome = "delayed" if error.is_temporary else "refused"
            if not (error.is_temporary or error.is_mailbox):
                outcome = "failed"
                await self._notices.keep(MAIL_NOTICE, str(error))
            self._on_mail(outcome)
            raise
        self._on_mail("sent")


def watch_webhooks(
    handle: Callable[[bytes, str | None], Awaitable[None]],
    notices: NoticeKeeper,
    on_webhook: Callable[[str], None],
) -> Callable[[bytes, str | None], Awaitable[None]]:
    """Return a handler of webhooks that reports outcomes, and keeps the newest refusal."""

    async def handle_watched(payload: bytes, signature: str | None) -> None:
        try:
            await handle(payload, signature)
        except ApiError as refusal:
            on_webhook(refusal.code)
            if refusal.status == 400:
                await notices.keep(WEBHOOK_NOTICE, str(refusal))
            raise
        on_webhook("ok")

    return handle_watched


async def read_certificate_end(address: str) -> int:
    """Return when the certificate of an https address ends, in epoch ms.

    ssl.SSLError if it is not valid now, OSError if nothing answers.
    """
    parts = urlsplit(address)
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        _, writer = await asyncio.open_connection(
            parts.hostname, parts.port or 443, ssl=ssl.create_default_context()
        )
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return ssl.cert_time_to_seconds(certificate["notAfter"]) * 1000


async def watch_certificate(address: str, notices: NoticeKeeper) -> None:
    """Keep the end of the certificate of an https address as a notice, until cancelled."""
    while True:
        # This machine may not reach its public address, so a failure is only for the doctor.
        try:
            await notices.keep(CERTIFICATE_NOTICE, str(await read_certificate_end(address)))
        except (OSError, TimeoutError) as error:
            log.info("certificate_not_read", **describe_failure(error))
        await asyncio.sleep(CERTIFICATE_PAUSE_S)
