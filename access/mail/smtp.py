"""Mail by an SMTP server: a connection a mail, over TLS wherever a password is sent to others."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from email.message import EmailMessage

import aiosmtplib

from access.mail.mailer import MailError, add_sender, get_domain
from access.mail.smtp_server import SmtpServer

TIMEOUT_S = 15.0
# Told in our own words: a server's may quote addresses, and a library's the login.
FAILURE_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (aiosmtplib.SMTPAuthenticationError, "refuses the user or password of SIGNALS_SMTP_URL"),
    (aiosmtplib.SMTPSenderRefused, "refuses the sender, SIGNALS_MAIL_FROM"),
    (aiosmtplib.SMTPRecipientsRefused, "refuses the recipient"),
    (aiosmtplib.SMTPResponseException, "refuses what it was asked"),
    (aiosmtplib.SMTPServerDisconnected, "broke the connection off"),
    (ssl.SSLError, "has no certificate for this host that this machine trusts"),
    (TimeoutError, "does not answer in time"),
    (OSError, "cannot be reached"),
    (Exception, "does not offer what is needed (a login, or this kind of address)"),
)


class SmtpMailer:
    """A Mailer; a mail is sent within `timeout_s` or not at all, whatever the server is slow at."""

    def __init__(self, server: SmtpServer, sender: str, timeout_s: float = TIMEOUT_S) -> None:
        self._server = server
        self._sender = sender
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context()
        if server.is_local:  # The certificates of relays on one's own machine are made up.
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    async def send(self, mail: EmailMessage) -> None:
        """Send a mail; MailError where it cannot leave."""
        add_sender(mail, self._sender)
        async with self._open_session() as session:
            await session.send_message(mail)

    async def check(self) -> str:
        """Connect and log in as for a mail, and send none; MailError says what is wrong."""
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
            async with asyncio.timeout(self._timeout_s):
                await client.connect()
                await self._start_tls(client)
                if self._server.user:
                    await client.login(self._server.user, self._server.password)
                yield client
            # What comes now takes back no mail.
            with suppress(aiosmtplib.SMTPException):
                await client.quit()
        except (aiosmtplib.SMTPException, OSError) as error:
            raise MailError(self._describe_error(error)) from None
        finally:
            client.close()

    async def _start_tls(self, client: aiosmtplib.SMTP) -> None:
        """Go over to TLS where the server offers it; MailError where it must and does not."""
        await client.ehlo()
        if self._server.has_tls:
            return
        if client.supports_extension("starttls"):
            await client.starttls()
            await client.ehlo()
        elif self._server.needs_starttls:
            raise MailError(
                f"{self._server.name} offers no STARTTLS, so all on the way could read the "
                "password: use smtps://, or a server that offers it"
            )

    def _describe_error(self, error: Exception) -> str:
        cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
        reason = next(reason for kind, reason in FAILURE_REASONS if isinstance(cause, kind))
        code = getattr(error, "code", 0)
        return f"{self._server.name} {reason}" + (f" (SMTP {code})" if code > 0 else "")
