"""A Mailer for tests that keeps all mails."""

import asyncio
from email.message import EmailMessage


class Mailbox:
    """A Mailer; `arrived` waits for the next mail, which is sent after a response."""

    def __init__(self) -> None:
        self.mails: asyncio.Queue[EmailMessage] = asyncio.Queue()

    async def send(self, mail: EmailMessage) -> None:
        self.mails.put_nowait(mail)

    async def check(self) -> str:
        return "kept for the test"

    async def wait_for_mail(self) -> EmailMessage:
        return await asyncio.wait_for(self.mails.get(), 10)
