"""The Mailer protocol, and helpers to build messages."""

import secrets
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Protocol


class MailError(Exception):
    """A mail was not sent; the message is for the operator's log and quotes nothing of the mail."""


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
