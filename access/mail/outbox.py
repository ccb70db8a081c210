"""Mail for one machine: every message becomes a file in a folder, and leaves it for nobody."""

import asyncio
import os
import secrets
from email.message import EmailMessage
from email.policy import SMTPUTF8
from pathlib import Path

from access.mail.mailer import MailError, add_sender


class Outbox:
    """A Mailer that writes each mail as NUMBER.eml, readable by its owner alone."""

    def __init__(self, folder: Path, sender: str) -> None:
        self._folder = folder
        self._sender = sender

    async def send(self, mail: EmailMessage) -> None:
        """Write a mail; MailError where the folder takes none."""
        add_sender(mail, self._sender)
        try:
            await asyncio.to_thread(self._write_file, mail.as_bytes(policy=SMTPUTF8))
        except OSError as error:
            raise MailError(f"cannot write to {self._folder}: {error.strerror}") from None

    async def check(self) -> str:
        """Return which folder mails are written to; the first one makes it."""
        return f"written to {self._folder}, and sent to nobody"

    def _write_file(self, content: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The number orders a listing; two mails at once may share one, and never a name.
        name = f"{len(list(self._folder.iterdir())) + 1:06}-{secrets.token_hex(4)}.eml"
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
