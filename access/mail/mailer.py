"""What a way to send mail must do."""

from email.message import EmailMessage
from typing import Protocol


class MailError(Exception):
    """A mail did not leave; the text is for the operator's log and holds nothing of the mail."""


class Mailer(Protocol):
    """Takes mails that are whole but for their sender."""

    async def send(self, mail: EmailMessage) -> None:
        """Send a mail; MailError where it cannot leave."""


def mail_to(address: str, subject: str, text: str) -> EmailMessage:
    """Return a mail of plain text."""
    mail = EmailMessage()
    mail["To"], mail["Subject"] = address, subject
    mail.set_content(text)
    return mail
