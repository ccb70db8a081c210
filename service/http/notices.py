"""Notices for the operator in the store of keys, about things that no caller sees.

They are refused webhooks, mail that failed, backups, and the end of the certificate. `signals
doctor`, the operations page and the metrics read them.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from email.message import EmailMessage
from typing import Final
from urllib.parse import urlsplit

import structlog

from access.mail import Mailer, MailError
from schemas.errors import ApiError, describe_failure
from schemas.vocabulary import HOUR_MS, Clock
from store.access_rows import Notice
from store.errors import StoreError
from store.sql.access_store import AccessStore

WEBHOOK_NOTICE, MAIL_NOTICE, CERTIFICATE_NOTICE = "webhook refused", "mail failed", "certificate"
# Anybody can cause refused webhooks, so each notice is written at most this often.
PAUSE_MS = 60_000
CONNECT_TIMEOUT_S = 10.0
CERTIFICATE_PAUSE_S = 6 * HOUR_MS / 1000

log = structlog.get_logger("operations")


class NoticeKeeper:
    """Keeps the newest notice of each name; a store that fails is only logged."""

    def __init__(self, store: AccessStore, clock: Clock) -> None:
        self._store: Final = store
        self._clock: Final = clock
        self._kept_at: dict[str, int] = {}

    async def keep(self, name: str, detail: str) -> None:
        """Replace the notice of this name, unless that was done in the last minute."""
        now = self._clock()
        if now - self._kept_at.get(name, now - PAUSE_MS) < PAUSE_MS:
            return
        self._kept_at[name] = now
        try:
            await self._store.put_notice(Notice(name, detail, now))
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


async def watch_certificate(
    address: str,
    notices: NoticeKeeper,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Keep the end of the certificate of an https address as a notice, until cancelled."""
    while True:
        # This machine may not reach its public address, so a failure is only for the doctor.
        try:
            await notices.keep(CERTIFICATE_NOTICE, str(await read_certificate_end(address)))
        except (OSError, TimeoutError) as error:
            log.info("certificate_not_read", **describe_failure(error))
        await sleep(CERTIFICATE_PAUSE_S)
