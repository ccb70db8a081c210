"""An SMTP server on a loopback port that keeps all mails and can be made to fail.

certificate.pem is self-signed for the name REMOTE, created by `openssl req -x509 -nodes`.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTPUTF8
from pathlib import Path

CERTIFICATE = Path(__file__).with_name("certificate.pem")
USER, PASSWORD = "me@mail.example", "p/ss:w@rd"
LOGIN = "me%40mail.example:p%2Fss%3Aw%40rd"
# REMOTE resolves to this machine, but the code treats it as another one.
REMOTE, LOCAL = "127.1", "127.0.0.1"


@dataclass(frozen=True)
class ReceivedMail:
    """A mail as received, with the session that sent it."""

    sender: str
    recipients: list[str]
    mail: EmailMessage
    had_tls: bool
    user: str | None


@dataclass
class SmtpDouble:
    """The server's capabilities and mails; `answers` maps commands to replies of the test.

    An empty reply drops the connection; None sends nothing.
    """

    offers_starttls: bool = True
    speaks_tls: bool = False
    answers: dict[str, str | None] = field(default_factory=dict)
    received: list[ReceivedMail] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    port: int = 0
    _sessions: set["asyncio.Task[None]"] = field(default_factory=set)

    def url(self, host: str = LOCAL, login: str = f"{LOGIN}@") -> str:
        scheme = "smtps" if self.speaks_tls else "smtp"
        return f"{scheme}://{login}{host}:{self.port}"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._sessions.add(asyncio.create_task(self._serve(reader, writer)))

    async def ended(self) -> None:
        """End every session, including one that sends nothing."""
        for session in self._sessions:
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await _Session(self, reader, writer).run()
        finally:
            writer.transport.abort()


class _Session:
    def __init__(
        self, double: SmtpDouble, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._double = double
        self._reader = reader
        self._writer = writer
        self._has_tls = double.speaks_tls
        self._user: str | None = None
        self._sender, self._recipients = "", list[str]()

    async def run(self) -> None:
        await self._say("220 mail.example ready")
        while line := (await self._reader.readuntil(b"\r\n")).decode().strip():
            self._double.commands.append(line)
            verb = line.split()[0].upper()
            answer = self._double.answers.get(verb, "its own")
            if answer is None:
                await self._reader.read()
            if not answer:
                return
            if answer != "its own":
                await self._say(answer)
            elif verb == "DATA":
                await self._data()
            else:
                await self._say(await self._answer(verb, line))
            if verb == "STARTTLS":
                await self._writer.start_tls(create_tls_context())
                self._has_tls, self._user = True, None
            if verb == "QUIT":
                return

    async def _answer(self, verb: str, line: str) -> str:
        if verb == "EHLO":
            starts = self._double.offers_starttls and not self._has_tls
            offers = ["STARTTLS"] * starts + ["AUTH PLAIN", "SMTPUTF8", "8BITMIME"]
            return "\r\n".join(
                ["250-mail.example", *(f"250-{offer}" for offer in offers), "250 OK"]
            )
        if verb == "AUTH":
            return self._login(line.split()[2])
        if verb == "MAIL":
            self._sender = _parse_address(line)
        if verb == "RCPT":
            self._recipients.append(_parse_address(line))
        return "220 go on" if verb == "STARTTLS" else "250 fine"

    def _login(self, sent: str) -> str:
        _, user, password = base64.b64decode(sent).decode().split("\0")
        if (user, password) != (USER, PASSWORD):
            return f"535 {user} is not let in with {password}"
        self._user = user
        return "235 welcome"

    async def _data(self) -> None:
        await self._say("354 go on")
        raw = (await self._reader.readuntil(b"\r\n.\r\n")).removesuffix(b".\r\n")
        mail = message_from_bytes(raw, policy=SMTPUTF8)
        got = ReceivedMail(self._sender, self._recipients, mail, self._has_tls, self._user)
        self._double.received.append(got)
        await self._say("250 kept")

    async def _say(self, text: str) -> None:
        self._writer.write(f"{text}\r\n".encode())
        await self._writer.drain()


def _parse_address(line: str) -> str:
    return line.partition("<")[2].partition(">")[0]


def create_tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@asynccontextmanager
async def run_smtp_double(
    *, offers_starttls: bool = True, speaks_tls: bool = False
) -> AsyncIterator[SmtpDouble]:
    """Run the server until the block ends."""
    double = SmtpDouble(offers_starttls=offers_starttls, speaks_tls=speaks_tls)
    context = create_tls_context() if speaks_tls else None
    server = await asyncio.start_server(double.accept, LOCAL, 0, ssl=context)
    double.port = server.sockets[0].getsockname()[1]
    try:
        yield double
    finally:
        server.close()
        await double.ended()


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
