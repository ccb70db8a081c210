"""Mail: to a folder on one machine, or by SMTP with one connection per mail.

A password leaves this machine only over TLS.
"""

import asyncio
import os
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTPUTF8
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self
from urllib.parse import unquote, urlsplit

from store.access_rows import normalize_email
from store.addresses import is_loopback

if TYPE_CHECKING:
    import aiosmtplib


class MailError(Exception):
    """A mail was not sent; the message is for the operator's log and quotes nothing of the mail.

    `is_temporary` if the server may accept the same mail later, as one that delays all strangers
    does (greylisting). `is_mailbox` if only mail to this address is refused: it is closed or full.
    """

    def __init__(
        self, message: str, *, is_temporary: bool = False, is_mailbox: bool = False
    ) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary
        self.is_mailbox = is_mailbox


class Mailer(Protocol):
    """Sends mails; adds the sender itself."""

    async def send(self, mail: EmailMessage) -> None:
        """Send a mail; raise MailError if that fails."""

    async def check(self) -> str:
        """Test the connection and return a description of it; raise MailError if it fails."""


def build_mail(address: str, subject: str, text: str, sent_at: int) -> EmailMessage:
    """Return a plain-text mail dated `sent_at` (epoch ms)."""
    mail = EmailMessage()
    mail["To"], mail["Subject"] = parse_address(address), subject
    mail["Date"] = format_datetime(datetime.fromtimestamp(sent_at // 1000, UTC))
    # Keeps out-of-office programs from replying.
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text)
    return mail


def add_sender(mail: EmailMessage, sender: str) -> None:
    """Set From and Message-ID, without which large mailbox providers reject a mail."""
    mail["From"] = parse_address(sender)
    mail["Message-ID"] = f"<{secrets.token_hex(16)}@{get_domain(sender)}>"


def get_domain(sender: str) -> str:
    """Return the domain of an address in ASCII (IDNA), as used in SMTP greetings."""
    return sender.rpartition("@")[2].encode("idna").decode()


def parse_address(text: str) -> Address:
    """Return an address for a header; raise ValueError if it contains CR or LF."""
    # Parsed as one mailbox: a comma or angle bracket must not add a second recipient.
    local, _, domain = text.rpartition("@")
    return Address(username=local, domain=domain)


class Outbox:
    """A Mailer that writes each mail to NUMBER-RANDOM.eml, readable only by the owner."""

    def __init__(self, folder: Path, sender: str) -> None:
        self._folder = folder
        self._sender = sender

    async def send(self, mail: EmailMessage) -> None:
        """Write a mail; raise MailError if the folder cannot be written."""
        add_sender(mail, self._sender)
        try:
            await asyncio.to_thread(self._write_file, mail.as_bytes(policy=SMTPUTF8))
        except OSError as error:
            raise MailError(f"cannot write to {self._folder}: {error.strerror}") from None

    async def check(self) -> str:
        """Return the folder in words; it is created by the first mail."""
        return f"written to {self._folder}, not sent"

    def _write_file(self, content: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The number sorts a listing. Two mails at once may get the same number; the random part
        # keeps their names apart.
        name = f"{len(list(self._folder.iterdir())) + 1:06}-{secrets.token_hex(4)}.eml"
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
        except OSError:
            (self._folder / name).unlink()
            raise


def find_mails(folder: Path, email: str) -> list[Path]:
    """Return the mails of an outbox to an address, oldest first."""
    mailbox = normalize_email(email)
    found = []
    for path in sorted(folder.glob("*.eml")):
        mail = message_from_bytes(path.read_bytes(), policy=SMTPUTF8)
        if mailbox in {normalize_email(each.addr_spec) for each in mail["To"].addresses}:
            found.append(path)
    return found


DEFAULT_PORTS = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """Address and login of an SMTP server; `has_tls` if TLS starts with the connection."""

    host: str
    port: int
    has_tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse smtp:// or smtps://[USER:PASSWORD@]HOST[:PORT]; no error quotes the URL."""
        try:
            parts = urlsplit(url)
            port = DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
            user, password = unquote(parts.username or ""), unquote(parts.password or "")
            rest = parts.path.strip("/") or parts.query or parts.fragment
            # A lookup encodes the name like this.
            (parts.hostname or "").encode("idna")
            if not parts.hostname or port == 0 or rest or bool(user) != bool(password):
                raise ValueError
            return cls(parts.hostname, port, parts.scheme == "smtps", user, password)
        except (ValueError, KeyError):
            raise ValueError(
                "expected smtp://[USER:PASSWORD@]HOST[:PORT] (STARTTLS) or smtps://... (TLS from "
                "the start); percent-encode special characters in USER and PASSWORD"
            ) from None

    @property
    def name(self) -> str:
        """HOST:PORT, for messages and logs."""
        return f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine."""
        return is_loopback(self.host)


TIMEOUT_S = 15.0


class SmtpMailer:
    """A Mailer that sends each mail within `timeout_s` in total, or raises MailError.

    To another machine it needs TLS, unless `allows_plain`; a password needs TLS in any case.
    """

    def __init__(
        self,
        server: SmtpServer,
        sender: str,
        timeout_s: float = TIMEOUT_S,
        *,
        allows_plain: bool = False,
    ) -> None:
        self._server = server
        self._allows_plain = allows_plain
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
    async def _open_session(self) -> AsyncIterator["aiosmtplib.SMTP"]:
        import aiosmtplib  # takes 0.2 s, and every command imports this module with the settings

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
                await client.ehlo()
                if not self._server.has_tls and client.supports_extension("starttls"):
                    await client.starttls()
                    await client.ehlo()
                elif not self._server.has_tls and not self._server.is_local:
                    remedy = "use smtps://, or a server that offers STARTTLS"
                    sent = "the password" if self._server.user else "sign-in links"
                    if not self._server.user:
                        remedy += ", or set SIGNALS_SMTP_UNENCRYPTED=1 "
                        remedy += "if you trust the network in between"
                    if self._server.user or not self._allows_plain:
                        raise MailError(
                            f"{self._server.name} does not offer STARTTLS, so {sent} would be sent "
                            f"unencrypted: {remedy}"
                        )
                if self._server.user:
                    await client.login(self._server.user, self._server.password)
                yield client
            # The server has accepted the mail; a failing QUIT does not change that.
            with suppress(aiosmtplib.SMTPException):
                await client.quit()
        except (aiosmtplib.SMTPException, OSError) as error:
            raise self._build_error(error) from None
        finally:
            client.close()

    def _build_error(self, error: Exception) -> MailError:
        import aiosmtplib

        recipients = getattr(error, "recipients", None)
        code = getattr(recipients[0] if recipients else error, "code", 0)
        if 400 <= code < 500:
            reason = "refuses the mail for now"
            return MailError(f"{self._server.name} {reason} (SMTP {code})", is_temporary=True)

        # Fixed texts, because the server's may quote addresses and the library's the login. The
        # first entry whose class matches applies, so subclasses come before their bases.
        reasons: tuple[tuple[type[Exception], str], ...] = (
            (
                aiosmtplib.SMTPAuthenticationError,
                "rejects the user or password in SIGNALS_SMTP_URL",
            ),
            (aiosmtplib.SMTPSenderRefused, "rejects the sender, SIGNALS_MAIL_FROM"),
            (aiosmtplib.SMTPRecipientsRefused, "rejects the recipient"),
            (aiosmtplib.SMTPResponseException, "rejects the request"),
            (aiosmtplib.SMTPServerDisconnected, "closed the connection"),
            (ssl.SSLError, "has no certificate that this machine trusts for this host"),
            (TimeoutError, "does not respond in time"),
            (OSError, "cannot be reached"),
            (Exception, "lacks a required feature (login, or this kind of address)"),
        )
        # aiosmtplib wraps certificate errors in a connection error.
        cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
        reason = next(reason for kind, reason in reasons if isinstance(cause, kind))
        text = f"{self._server.name} {reason}" + (f" (SMTP {code})" if code > 0 else "")
        is_outage = isinstance(cause, OSError | aiosmtplib.SMTPServerDisconnected)
        # 554 and 5.7 are the server's rules, which refuse all mail of this service.
        words = recipients[0].message if recipients else "5.7."
        is_mailbox = code != 554 and not words.startswith("5.7.")
        is_temporary = is_outage and not isinstance(cause, ssl.SSLError)
        return MailError(text, is_temporary=is_temporary, is_mailbox=is_mailbox)
