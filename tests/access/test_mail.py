"""Mail goes to files that only the owner reads, or by SMTP with a password only over TLS."""

import asyncio
import re
import resource
import stat
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTPUTF8
from pathlib import Path

import pytest

from access.mail import MailError, Outbox, SmtpMailer, SmtpServer, build_mail
from tests.doubles.smtp.server import (
    CERTIFICATE,
    LOCAL,
    PASSWORD,
    REMOTE,
    USER,
    SmtpDouble,
    run_smtp_double,
)
from tests.support.example_market import NOON

pytestmark = pytest.mark.clause("dashboard")

OUTBOX_SENDER = "signals@localhost"


def read_mails(folder: Path) -> list[EmailMessage]:
    files = sorted(folder.iterdir())
    return [message_from_bytes(file.read_bytes(), policy=SMTPUTF8) for file in files]


async def test_a_mail_becomes_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "outbox"
    outbox = Outbox(folder, OUTBOX_SENDER)
    assert await outbox.check() == f"written to {folder}, not sent"
    assert not folder.exists()
    await outbox.send(build_mail("jörg@example.com", "Sign in", "the link", NOON))
    (file,) = folder.iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, folder)] == [0o600, 0o700]
    (mail,) = read_mails(folder)
    assert (mail["From"], mail["To"], mail["Date"], mail.get_content().strip()) == (
        OUTBOX_SENDER,
        "jörg@example.com",
        "Wed, 30 Sep 2026 12:03:00 +0000",
        "the link",
    )


async def test_files_sort_in_the_order_of_sending_and_concurrent_ones_replace_none(
    tmp_path: Path,
) -> None:
    boxes = [Outbox(tmp_path, OUTBOX_SENDER) for _ in range(4)]
    for number in range(12):
        await boxes[0].send(build_mail("a@example.com", f"{number}", "text", NOON))
    assert [mail["Subject"] for mail in read_mails(tmp_path)] == [str(n) for n in range(12)]
    await asyncio.gather(
        *(box.send(build_mail("a@example.com", "s", "text", NOON)) for box in boxes * 3)
    )
    assert len(read_mails(tmp_path)) == 24


async def test_a_failing_folder_is_named_without_the_recipient(tmp_path: Path) -> None:
    (tmp_path / "outbox").write_text("a file")
    outbox = Outbox(tmp_path / "outbox", OUTBOX_SENDER)
    with pytest.raises(MailError, match="cannot write to") as failed:
        await outbox.send(build_mail("a@example.com", "s", "text", NOON))
    assert str(tmp_path) in str(failed.value)
    assert "a@example.com" not in str(failed.value)


async def test_a_mail_that_is_written_in_part_is_deleted(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, OUTBOX_SENDER)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(MailError, match="cannot write to"):
            await outbox.send(build_mail("a@example.com", "s", "text", NOON))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_mails(tmp_path) == []


SENDER, MEMBER = "keys@mail.example", "member@example.com"
LINK = "https://signals.example/sign-in/SECRET"
SECRETS = (PASSWORD, USER, MEMBER, LINK, "SECRET")


async def send(
    url: str, address: str = MEMBER, timeout_s: float = 10, *, allows_plain: bool = False
) -> None:
    mailer = SmtpMailer(SmtpServer.parse(url), SENDER, timeout_s, allows_plain=allows_plain)
    await mailer.send(build_mail(address, "Sign in", f"Follow\n\n{LINK}\n", NOON))


async def get_failure(url: str, timeout_s: float = 10) -> MailError:
    """Return the error of sending a mail; assert that it quotes nothing of the mail."""
    with pytest.raises(MailError) as failed:
        await send(url, timeout_s=timeout_s)
    assert not [secret for secret in (*SECRETS, "\n") if secret in str(failed.value)]
    assert failed.value.__cause__ is None
    return failed.value


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust the certificate of the test server."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))


@pytest.mark.parametrize("speaks_tls", [False, True])
@pytest.mark.parametrize("host", [LOCAL, REMOTE])
@pytest.mark.usefixtures("trusted")
async def test_a_mail_arrives_whole_over_tls_after_a_login(host: str, speaks_tls: bool) -> None:
    async with run_smtp_double(speaks_tls=speaks_tls) as server:
        await send(server.url(host))
    (got,) = server.received
    assert (got.sender, got.recipients, got.had_tls, got.user) == (SENDER, [MEMBER], True, USER)
    assert (got.mail["From"], got.mail["To"], got.mail["Subject"], got.mail["Date"]) == (
        SENDER,
        MEMBER,
        "Sign in",
        "Wed, 30 Sep 2026 12:03:00 +0000",
    )
    assert got.mail["Auto-Submitted"] == "auto-generated"
    assert re.fullmatch(r"<\w{32}@mail\.example>", got.mail["Message-ID"])
    assert got.mail.get_content().splitlines() == ["Follow", "", LINK]


async def test_on_the_same_machine_any_certificate_or_none_is_accepted() -> None:
    for offers_starttls in (True, False):
        async with run_smtp_double(offers_starttls=offers_starttls) as server:
            await send(server.url())
        assert (server.received[0].had_tls, server.received[0].user) == (offers_starttls, USER)


@pytest.mark.parametrize("speaks_tls", [False, True])
async def test_an_untrusted_certificate_ends_the_session_before_the_login(
    speaks_tls: bool,
) -> None:
    async with run_smtp_double(speaks_tls=speaks_tls) as server:
        assert "certificate" in str(await get_failure(server.url(REMOTE)))
    assert server.received == []
    assert not [line for line in server.commands if line.startswith("AUTH")]


async def test_without_starttls_no_password_goes_to_another_machine() -> None:
    async with run_smtp_double(offers_starttls=False) as server:
        assert "does not offer STARTTLS" in str(await get_failure(server.url(REMOTE)))
        assert not [line for line in server.commands if line.startswith("AUTH")]
        plain = server.url(REMOTE, login="")
        assert "SIGNALS_SMTP_UNENCRYPTED=1" in str(await get_failure(plain))
        assert not [line for line in server.commands if line.startswith("MAIL")]
        await send(plain, allows_plain=True)
        with pytest.raises(MailError, match="so the password would be sent"):
            await send(server.url(REMOTE), allows_plain=True)
    assert [got.user for got in server.received] == [None]


async def test_a_wrong_password_is_reported_only_by_its_setting() -> None:
    async with run_smtp_double() as server:
        assert str(await get_failure(server.url(login="me:other@"))) == (
            f"{LOCAL}:{server.port} rejects the user or password in SIGNALS_SMTP_URL (SMTP 535)"
        )


@pytest.mark.parametrize(
    ("verb", "answer", "why", "kind"),
    [
        ("EHLO", "550 go away", "rejects the request (SMTP 5", ""),
        ("AUTH", "", "closed the connection", "temporary"),
        ("MAIL", f"550 not you, {USER}", "rejects the sender, SIGNALS_MAIL_FROM (SMTP 550)", ""),
        ("RCPT", f"550 no such {MEMBER}", "rejects the recipient (SMTP 550)", "mailbox"),
        ("DATA", f"554 no spam {MEMBER}", "rejects the request (SMTP 554)", ""),
        ("DATA", "", "closed the connection", "temporary"),
        ("MAIL", "what?", "rejects the request", ""),
        ("AUTH", "what?", "rejects the request", ""),
        *(
            (verb, f"{code} come back", f"refuses the mail for now (SMTP {code})", "temporary")
            for verb, code in (
                *(("MAIL", 451), ("RCPT", 450), ("RCPT", 451), ("DATA", 452)),
                *(("AUTH", 454), ("STARTTLS", 454), ("EHLO", 421)),
            )
        ),
        ("AUTH", "535 no", "(SMTP 535)", ""),
        # One closed mailbox is told from a server that refuses all.
        ("RCPT", "550 5.1.1 no such user", "(SMTP 550)", "mailbox"),
        ("RCPT", "552 5.2.2 mailbox full", "(SMTP 552)", "mailbox"),
        ("RCPT", "550 5.7.1 relaying denied", "(SMTP 550)", ""),
        ("RCPT", "554 access denied", "(SMTP 554)", ""),
    ],
)
async def test_a_refusal_says_whom_it_concerns_and_not_the_words_of_the_server(
    verb: str, answer: str, why: str, kind: str
) -> None:
    async with run_smtp_double() as server:
        server.answers = {verb: answer, "HELO": answer} if verb == "EHLO" else {verb: answer}
        failure = await get_failure(server.url())
    assert why in str(failure)
    assert (failure.is_temporary, failure.is_mailbox) == (kind == "temporary", kind == "mailbox")
    assert server.received == []


@pytest.mark.parametrize("verb", ["EHLO", "AUTH", "DATA"])
async def test_a_silent_server_is_given_up_after_the_timeout(verb: str) -> None:
    async with run_smtp_double() as server:
        server.answers = {verb: None}
        assert "does not respond in time" in str(await get_failure(server.url(), timeout_s=0.2))


async def test_an_accepted_mail_stays_sent_if_the_session_ends_badly() -> None:
    for answer in ("", "500 what?"):
        async with run_smtp_double() as server:
            server.answers = {"QUIT": answer}
            await send(server.url())
        assert len(server.received) == 1


async def test_an_unreachable_server_is_named() -> None:
    async with run_smtp_double() as server:
        pass
    assert str(await get_failure(server.url())) == f"{LOCAL}:{server.port} cannot be reached"


async def test_a_check_logs_in_and_sends_nothing() -> None:
    async with run_smtp_double() as server:
        mailer = SmtpMailer(SmtpServer.parse(server.url()), SENDER)
        assert await mailer.check() == f"sent by {LOCAL}:{server.port}, from {SENDER}"
        server.answers = {"AUTH": "535 no"}
        with pytest.raises(MailError, match="SIGNALS_SMTP_URL"):
            await mailer.check()
    assert [line.split()[0] for line in server.commands].count("MAIL") == 0


@pytest.mark.parametrize(
    "address", ["a@example.com\r\nBcc: b@example.com", "a@example.com\nb", "a@example.com\r"]
)
def test_an_address_adds_no_header(address: str) -> None:
    with pytest.raises(ValueError, match="CR or LF"):
        build_mail(address, "Sign in", "text", NOON)


@pytest.mark.parametrize(
    "address",
    [
        *("a@example.com, b@evil.example", "<b@evil.example> a@mail.example"),
        "jörg@bücher.example",
    ],
)
async def test_an_address_with_special_characters_or_other_letters_is_one_recipient(
    address: str,
) -> None:
    async with run_smtp_double() as server:
        await send(server.url(), address)
    (got,) = server.received
    assert len(got.recipients) == 1
    assert got.recipients != ["b@evil.example"]
    if "ö" in address:
        assert [*got.recipients, got.mail["To"]] == [address, address]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtp://mail.example", SmtpServer("mail.example", 587)),
        ("smtps://mail.example", SmtpServer("mail.example", 465, has_tls=True)),
        ("smtp://a%40b:c%2Fd@[::1]:25/", SmtpServer("::1", 25, user="a@b", password="c/d")),
        (SmtpDouble(port=25).url(), SmtpServer(LOCAL, 25, user=USER, password=PASSWORD)),
    ],
)
def test_an_address_of_a_server_is_read(url: str, expected: SmtpServer) -> None:
    assert SmtpServer.parse(url) == expected
    assert not expected.password or expected.password not in repr(SmtpServer.parse(url))


@pytest.mark.parametrize(
    "url",
    [
        "http://mail.example",
        "smtp://",
        "mail.example:25",
        "smtp://me@mail.example",
        "smtp://a..b",
        "smtp://:hidden@mail.example",
        "smtp://me:hidden@mail.example:port",
        "smtp://me:hidden@mail.example:0",
        "smtp://me:hid/den@mail.example",
        "smtp://me:hid#den@mail.example",
        "smtp://me:hid?den@mail.example",
        "smtp://mail.example/inbox",
        "smtp://[::hidden",
    ],
)
def test_an_invalid_server_address_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"^expected smtp://\[USER:PASSWORD@\]HOST") as refused:
        SmtpServer.parse(url)
    assert "hid" not in str(refused.value)
