"""What a way to send mail must do."""

import secrets
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Protocol


class MailError(Exception):
    """A mail did not leave; the text is for the operator's log and holds nothing of the mail."""


class Mailer(Protocol):
    """Takes mails that are whole but for their sender."""

    async def send(self, mail: EmailMessage) -> None:
        """Send a mail; MailError where it cannot leave."""

    async def check(self) -> str:
        """Return where mails go, in words, having been there; MailError says what is wrong."""


def build_mail(address: str, subject: str, text: str, sent_at: int) -> EmailMessage:
    """Return a mail of plain text, written at a time in epoch ms, that asks for no answer."""
    mail = EmailMessage()
    mail["To"], mail["Subject"] = parse_address(address), subject
    mail["Date"] = format_datetime(datetime.fromtimestamp(sent_at // 1000, UTC))
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text)
    return mail


def add_sender(mail: EmailMessage, sender: str) -> None:
    """Say who a mail is from, and name it: large mailbox providers take none without an id."""
    mail["From"] = parse_address(sender)
    mail["Message-ID"] = f"<{secrets.token_hex(16)}@{get_domain(sender)}>"


def get_domain(sender: str) -> str:
    """Return the domain of an address as servers name each other."""
    return sender.rpartition("@")[2].encode("idna").decode()


def parse_address(text: str) -> Address:
    """Return what a header takes for one mailbox, whatever stands in the text.

    ValueError where it would end the header.
    """
    local, _, domain = text.rpartition("@")
    return Address(username=local, domain=domain)
