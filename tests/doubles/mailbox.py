"""Where mail goes in tests: a Mailer that keeps what it is given."""

import asyncio
from email.message import EmailMessage


class Mailbox:
    """A Mailer; `arrived` waits for the next mail, which is sent beside an answer."""

    def __init__(self) -> None:
        self.mails: asyncio.Queue[EmailMessage] = asyncio.Queue()

    async def send(self, mail: EmailMessage) -> None:
        self.mails.put_nowait(mail)

    async def check(self) -> str:
        return "kept for the test"

    async def wait_for_mail(self) -> EmailMessage:
        return await asyncio.wait_for(self.mails.get(), 10)
