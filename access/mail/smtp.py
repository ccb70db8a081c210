"""Mail by SMTP: one connection per mail; a password leaves this machine only over TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from email.message import EmailMessage

import aiosmtplib

from access.mail.mailer import MailError, add_sender, get_domain
from access.mail.smtp_server import SmtpServer

TIMEOUT_S = 15.0
# Fixed texts, because the server's may quote addresses and the library's the login. The first entry
# whose class matches applies, so subclasses come before their bases.
FAILURE_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (aiosmtplib.SMTPAuthenticationError, "rejects the user or password in SIGNALS_SMTP_URL"),
    (aiosmtplib.SMTPSenderRefused, "rejects the sender, SIGNALS_MAIL_FROM"),
    (aiosmtplib.SMTPRecipientsRefused, "rejects the recipient"),
    (aiosmtplib.SMTPResponseException, "rejects the request"),
    (aiosmtplib.SMTPServerDisconnected, "closed the connection"),
    (ssl.SSLError, "has no certificate that this machine trusts for this host"),
    (TimeoutError, "does not respond in time"),
    (OSError, "cannot be reached"),
    (Exception, "lacks a required feature (login, or this kind of address)"),
)


class SmtpMailer:
    """A Mailer that sends each mail within `timeout_s` in total, or raises MailError."""

    def __init__(self, server: SmtpServer, sender: str, timeout_s: float = TIMEOUT_S) -> None:
        self._server = server
        self._sender = sender
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context()
        # A relay on this machine usually has a self-signed certificate, and no one is in between.
        if server.is_local:
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    async def send(self, mail: EmailMessage) -> None:
        """Send a mail; raise MailError if that fails."""
        add_sender(mail, self._sender)
        async with self._open_session() as session:
            await session.send_message(mail)

    async def check(self) -> str:
        """Connect and log in without sending a mail; raise MailError if that fails."""
        async with self._open_session():
            return f"sent by {self._server.name}, from {self._sender}"

    @asynccontextmanager
    async def _open_session(self) -> AsyncIterator[aiosmtplib.SMTP]:
        client = aiosmtplib.SMTP(
            hostname=self._server.host,
            port=self._server.port,
            local_hostname=get_domain(self._sender),
            timeout=self._timeout_s,
            use_tls=self._server.has_tls,
            start_tls=False,
            tls_context=self._tls,
        )
        try:
            # The client's own timeout applies per reply; a slow server could still take minutes.
            async with asyncio.timeout(self._timeout_s):
                await client.connect()
                await self._start_tls(client)
                if self._server.user:
                    await client.login(self._server.user, self._server.password)
                yield client
            # The server has accepted the mail; a failing QUIT does not change that.
            with suppress(aiosmtplib.SMTPException):
                await client.quit()
        except (aiosmtplib.SMTPException, OSError) as error:
            raise MailError(self._describe_error(error)) from None
        finally:
            client.close()

    async def _start_tls(self, client: aiosmtplib.SMTP) -> None:
        """Switch to TLS if the server offers it; raise MailError if it is needed and missing."""
        await client.ehlo()
        if self._server.has_tls:
            return
        if client.supports_extension("starttls"):
            await client.starttls()
            await client.ehlo()
        elif self._server.needs_starttls:
            raise MailError(
                f"{self._server.name} does not offer STARTTLS, so the password would be sent "
                "unencrypted: use smtps://, or a server that offers STARTTLS"
            )

    def _describe_error(self, error: Exception) -> str:
        # aiosmtplib wraps certificate errors in a connection error.
        cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
        reason = next(reason for kind, reason in FAILURE_REASONS if isinstance(cause, kind))
        code = getattr(error, "code", 0)
        return f"{self._server.name} {reason}" + (f" (SMTP {code})" if code > 0 else "")
