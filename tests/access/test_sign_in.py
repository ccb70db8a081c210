"""Sign-in by mailed links, which does not reveal the addresses of members."""

import asyncio
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from access.billing.provider import BillingError, SettledPayment
from access.keys_and_quota import hash_key
from access.mail import MailError
from access.sign_in import (
    MAIL_LIMIT,
    MAILBOX_LIMIT,
    MAX_MAIL_DELAY_S,
    MIN_MAIL_DELAY_S,
    SIGN_IN_PATH,
    SignIn,
)
from access.throttle import DEFAULT_LIMIT, Limit, Throttle
from schemas.errors import ApiError
from tests.doubles.smtp.server import Mailbox
from tests.store.sqlite.test_engine import trace_statements
from tests.support.example_market import NOON
from tests.support.running_service import ManualClock, skip_sleep
from tests.support.sandbox_shop import (
    ADDRESS,
    BASE_URL,
    HeldProvider,
    SandboxShop,
    read_files,
)

pytestmark = pytest.mark.clause("dashboard")

MEMBERS, STRANGERS = "a@example.com", "b@example.com"
LIMIT = Limit(3, 600)
GREYLISTED = MailError("mail.example:587 refuses it for now (SMTP 450)", is_temporary=True)


@dataclass
class Door:
    """A SignIn with its collaborators, on a store with one member."""

    shop: SandboxShop
    billing: HeldProvider
    mailbox: Mailbox
    folder: Path

    def __post_init__(self) -> None:
        self.sign_in = self.open_sign_in()

    def open_sign_in(self, limit: Limit = DEFAULT_LIMIT) -> SignIn:
        """Return the SignIn of another process on the same store."""
        shop = self.shop
        return SignIn(
            shop.store,
            self.billing,
            shop.claims,
            self.mailbox,
            Throttle(shop.store, shop.clock, "sign-in", limit),
            shop.clock,
            skip_sleep,
            base_url=BASE_URL,
        )

    async def request_mails(
        self, email: str = MEMBERS, address: str = ADDRESS
    ) -> list[EmailMessage]:
        """Request a link as a page does, and return the mails."""
        await self.sign_in.mail_link(*await self.sign_in.request_link(email, address))
        return [self.mailbox.mails.get_nowait() for _ in range(self.mailbox.mails.qsize())]

    async def find_email(self, session_token: str) -> str | None:
        """Return the e-mail address of a session, None if there is no such session."""
        session = await self.sign_in.find_session(session_token)
        return None if session is None else session.contact_email


def parse_token(mail: EmailMessage) -> str:
    (line,) = [line for line in mail.get_content().splitlines() if line.startswith("http")]
    assert line.startswith(f"{BASE_URL}{SIGN_IN_PATH}")
    return line.removeprefix(f"{BASE_URL}{SIGN_IN_PATH}")


@pytest.fixture
async def door(held_shop: SandboxShop, billing: HeldProvider, tmp_path: Path) -> Door:
    await held_shop.claim(await held_shop.open_paid_checkout(billing))
    return Door(held_shop, billing, Mailbox(), tmp_path)


@pytest.mark.parametrize("email", [MEMBERS, "A@EXAMPLE.COM"])
async def test_a_link_goes_to_the_reported_address_and_creates_a_session_of_its_recipient(
    door: Door, email: str
) -> None:
    (mail,) = await door.request_mails(email)
    assert mail["To"] == MEMBERS
    assert "A@EXAMPLE.COM" not in str(mail)
    link = parse_token(mail)
    session, is_owner = await door.sign_in.redeem_link(link)
    assert not is_owner
    assert await door.find_email(session) == MEMBERS
    stored = read_files(door.folder)
    for token in (link, session):
        assert len(token) == 46
        assert hash_key(token) in stored
        assert token.encode() not in stored
    await door.sign_in.sign_out(session)
    assert [await door.find_email(ended) for ended in (session, "another")] == [None] * 2


async def test_a_stranger_gets_the_same_response_and_no_mail(door: Door) -> None:
    for email in (STRANGERS, MEMBERS):
        assert await door.sign_in.request_link(email, ADDRESS) == (email, 0)
        assert await door.sign_in.request_link(email, ADDRESS) == (email, 60)
    door.shop.clock.now += MAIL_LIMIT.window_s * 1000
    with capture_logs() as lines:
        assert await door.request_mails(STRANGERS) == []
        assert len(await door.request_mails()) == 1
    assert lines == []


async def test_a_member_signs_in_after_the_end_and_in_another_mode_but_not_of_another_provider(
    door: Door,
) -> None:
    shop, billing = door.shop, door.billing
    (member,) = await shop.store.list_open_memberships("held")
    await shop.store.end_membership(member, NOON, "canceled")
    for name, mode, mails in (("held", "live", 1), ("held", "test", 1), ("other", "live", 0)):
        billing.name, billing.mode = name, mode
        assert len(await door.request_mails()) == mails
        shop.clock.now += MAIL_LIMIT.window_s * 1000


async def test_a_buyer_without_a_key_is_mailed_a_link_and_not_the_opener_of_the_checkout(
    door: Door,
) -> None:
    await door.shop.open_checkout(contact_email="Late@example.com")
    for payer, mailed in ((None, []), ("payer@example.com", []), ("LATE@example.com", None)):
        if payer:
            door.billing.payments["cs_2"] = SettledPayment("sub_2", "cus_2", payer)
        mails = await door.request_mails("late@example.com")
        assert [mail["To"] for mail in mails] == ([payer] if mailed is None else mailed)
        door.shop.clock.now += MAIL_LIMIT.window_s * 1000


async def test_links_are_limited_per_client_address_for_all_mailboxes(
    door: Door,
) -> None:
    sign_in = door.open_sign_in(LIMIT)
    for email in (MEMBERS, STRANGERS, "nonsense@example.com"):
        await sign_in.request_link(email, ADDRESS)
    refusals = []
    for email in (MEMBERS, STRANGERS):
        with pytest.raises(ApiError) as refusal:
            await sign_in.request_link(email, ADDRESS)
        refusals.append((refusal.value.status, refusal.value.message, refusal.value.retry_after_s))
    assert refusals[0] == refusals[1]
    assert refusals[0][0] == 429
    assert await sign_in.request_link(MEMBERS, "192.0.2.99") == (MEMBERS, 60)


async def test_a_mailbox_gets_one_mail_a_minute_in_any_spelling(
    door: Door, clock: ManualClock
) -> None:
    written = ["a@example.com", "A@example.com", "a@EXAMPLE.com"]
    assert len(await door.request_mails(written[0])) == 1
    released = asyncio.Event()
    waits: list[float] = []
    all_wait = asyncio.Event()

    async def wait(seconds: float) -> None:
        if seconds > MAX_MAIL_DELAY_S:
            waits.append(seconds)
            if len(waits) == len(written):
                all_wait.set()
            await released.wait()

    door.sign_in._sleep = wait
    clock.now += 20_000
    held = [asyncio.create_task(door.request_mails(email)) for email in written]
    await all_wait.wait()
    assert waits == [40] * 3
    clock.now += 40_000
    released.set()
    with capture_logs() as lines:
        # Only the newest of those that waited.
        assert sorted(map(len, await asyncio.gather(*held))) == [0, 0, 1]
    assert lines == []
    # Another process has mailed meanwhile.
    clock.now += 60_000 - 1
    with capture_logs() as lines:
        assert await door.request_mails() == []
    (line,) = lines
    assert line["event"] == "sign_in_not_mailed"
    assert "example.com" not in str(lines).lower()


async def test_a_stranger_keeps_no_member_from_signing_in(door: Door, clock: ManualClock) -> None:
    strangers = "198.51.100.7"
    for _ in range(MAILBOX_LIMIT.attempts):
        assert len(await door.request_mails(address=strangers)) == 1
        clock.now += MAIL_LIMIT.window_s * 1000
    for email in (MEMBERS, MEMBERS.upper()):
        with pytest.raises(ApiError, match="Retry after 3300 seconds") as refusal:
            await door.sign_in.request_link(email, strangers)
        assert refusal.value.retry_after_s == 3300
    # Nor does a stranger who orders plans for the member's address.
    with capture_logs() as lines:
        await door.sign_in.mail_buyer(MEMBERS, strangers)
    assert [line["event"] for line in lines] == ["sign_in_not_mailed"]
    assert len(await door.request_mails()) == 1


class Refusing(Mailbox):
    """A Mailer that fails until a time."""

    def __init__(self, clock: ManualClock, until: int, error: Exception = GREYLISTED) -> None:
        super().__init__()
        self.clock, self.until, self.error = clock, until, error

    async def send(self, mail: EmailMessage) -> None:
        if self.clock.now < self.until:
            raise self.error
        await super().send(mail)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(MailError("mail.example:587 cannot be reached"), "reached"), (KeyError(MEMBERS), "KeyError")],
)
async def test_a_failed_mail_is_logged_without_its_content(
    door: Door, clock: ManualClock, error: Exception, expected: str
) -> None:
    door.mailbox = Refusing(clock, clock.now + 1, error)
    sign_in = door.open_sign_in()
    with capture_logs() as lines:
        await sign_in.mail_link(MEMBERS, 0)
    (line,) = lines
    assert line["event"] == "sign_in_not_mailed"
    assert expected in str(line)
    assert MEMBERS not in str(line)
    assert SIGN_IN_PATH not in str(line)


@pytest.mark.parametrize(
    ("minutes", "expected"), [(1, 1), (14, 1), (30, 1), (31, 0)], ids=["1", "14", "30", "never"]
)
async def test_a_mail_that_is_refused_for_now_is_sent_within_thirty_minutes_with_a_live_link(
    door: Door, clock: ManualClock, minutes: int, expected: int
) -> None:
    door.mailbox = Refusing(clock, clock.now + minutes * 60_000)
    sign_in = door.open_sign_in()

    async def sleep(seconds: float) -> None:
        clock.now += round(seconds) * 1000

    sign_in._sleep = sleep
    with capture_logs() as lines:
        await sign_in.mail_link(MEMBERS, 0)
        await asyncio.gather(*sign_in._retries)
    events = [line["event"] for line in lines]
    assert events[0] == "sign_in_mail_delayed"
    assert "SMTP 450" in lines[0]["why"]
    assert events[1:] == ([] if expected else ["sign_in_not_mailed"])
    mails = [door.mailbox.mails.get_nowait() for _ in range(expected)]
    assert door.mailbox.mails.empty()
    for mail in mails:
        session, _ = await sign_in.redeem_link(parse_token(mail))
        assert await door.find_email(session)
    assert sign_in._waiting == {}


async def test_a_store_that_fails_for_a_while_ends_no_retries(
    door: Door, clock: ManualClock
) -> None:
    door.mailbox = Refusing(clock, clock.now + 60_000)
    sign_in = door.open_sign_in()

    async def sleep(seconds: float) -> None:
        clock.now += round(seconds) * 1000
        names = {60: ("sign_in_links", "gone"), 120: ("gone", "sign_in_links")}.get(round(seconds))
        if names:
            with closing(sqlite3.connect(door.folder / "access.db")) as db:
                db.execute("ALTER TABLE {} RENAME TO {}".format(*names))

    sign_in._sleep = sleep
    await sign_in.mail_link(MEMBERS, 0)
    await asyncio.gather(*sign_in._retries)
    assert door.mailbox.mails.qsize() == 1


async def test_a_newer_request_ends_the_retries_of_an_older_one(
    door: Door, clock: ManualClock
) -> None:
    door.mailbox = Refusing(clock, clock.now + 1)
    sign_in, released = door.open_sign_in(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds >= 60:
            await released.wait()

    sign_in._sleep = sleep
    await sign_in.mail_link(MEMBERS, 0)
    clock.now += 60_000
    await sign_in.mail_link(MEMBERS, 0)
    released.set()
    await asyncio.gather(*sign_in._retries)
    assert door.mailbox.mails.qsize() == 1


@pytest.mark.parametrize(("email", "mails"), [("late@example.com", 0), (MEMBERS, 1)])
async def test_an_unavailable_processor_is_logged_and_keeps_no_member_from_signing_in(
    door: Door, email: str, mails: int
) -> None:
    await door.shop.open_checkout(contact_email=email)
    door.billing.payments["cs_2"] = BillingError("down")
    with capture_logs() as lines:
        assert len(await door.request_mails(email)) == mails
    assert [line["event"] for line in lines] == ["billing_unavailable", "sign_in_payments_unknown"]
    assert email not in str(lines)


async def test_a_mail_that_waits_when_the_service_stops_is_one_line(door: Door) -> None:
    waiting = asyncio.Event()

    async def wait(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    door.sign_in._sleep = wait
    for wait_s in (0, 40):
        waiting.clear()
        mailing = asyncio.create_task(door.sign_in.mail_link(MEMBERS, wait_s))
        await waiting.wait()
        with capture_logs() as lines:
            mailing.cancel()
            await mailing
        assert [line["event"] for line in lines] == ["sign_in_not_mailed"]
    assert door.mailbox.mails.empty()


async def record_work(door: Door, email: str) -> tuple[list[str], int]:
    """Request a link; return the statements and the checks of payments before the only pause."""
    pauses: list[float] = []
    before: list[str] = []
    door.billing.checks.clear()
    async with trace_statements(door.shop.store) as executed:

        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            before.extend(executed)
            executed.clear()

        door.sign_in._sleep = pause
        await door.sign_in.mail_link(email, 0)
        assert executed == []
    (pause_s,) = pauses
    assert MIN_MAIL_DELAY_S <= pause_s <= MAX_MAIL_DELAY_S
    # The trace shows the values too, which differ.
    statements = [re.sub(r"'[^']*'|\d+", "?", statement) for statement in before]
    return statements, len(door.billing.checks)


@pytest.mark.parametrize("checkouts", [0, 2])
async def test_the_work_after_a_request_is_the_same_for_members_and_strangers(
    door: Door, checkouts: int
) -> None:
    for email in (MEMBERS, STRANGERS):
        for _ in range(checkouts):
            await door.shop.open_checkout(contact_email=email)
    member, stranger = [await record_work(door, email) for email in (MEMBERS, STRANGERS)]
    assert door.mailbox.mails.qsize() == 1
    assert member == stranger
    statements, checks = member
    assert any("INSERT INTO sign_in_links" in statement for statement in statements)
    assert checks == checkouts


async def test_a_strangers_link_cannot_be_used_and_holds_no_address(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("access.sign_in.secrets.token_urlsafe", lambda size: "A" * 43)
    assert await door.request_mails(STRANGERS) == []
    async with door.shop.store._engine.acquire_connection() as db:
        (row,) = await db.execute("SELECT token_hash, contact_email FROM sign_in_links")
    assert tuple(row) == (hash_key("sl_" + "A" * 43), "")
    with pytest.raises(ApiError) as refusal:
        await door.sign_in.redeem_link("sl_" + "A" * 43)
    assert (refusal.value.status, "sl_" in refusal.value.message) == (404, False)
