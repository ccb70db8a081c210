"""Mail on one machine: writes every message to a file in a folder and sends nothing."""

import asyncio
import os
import secrets
from email.message import EmailMessage
from email.policy import SMTPUTF8
from pathlib import Path

from access.mail.mailer import MailError, add_sender


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
