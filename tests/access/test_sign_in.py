"""Signing in: a mailed link makes one session, and nobody learns whose address is a member's."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from email.message import EmailMessage
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from access.billing.provider import BillingError, Paid
from access.claims import MOST_ASKED
from access.mail.mailer import MailError
from access.sign_in import LINK_MS, MAILS, PATH, SESSION_MS, SignIn, hash_token
from access.throttle import DEFAULT_LIMIT, Limit, Throttle
from schemas.errors import ApiError
from tests.access.selling import ADDRESS, BASE_URL, HeldBilling, Shop, opened
from tests.mailbox import Mailbox
from tests.serving import NOON, ManualClock
from tests.store.test_purchases import MEMBER

pytestmark = pytest.mark.clause("dashboard")

MEMBERS, STRANGERS = "a@example.com", "b@example.com"
LIMIT = Limit(3, 600)


@dataclass
class Door:
    """What signing in takes, on a store where one mailbox is a member's."""

    shop: Shop
    billing: HeldBilling
    mailbox: Mailbox
    sign_in: SignIn
    folder: Path

    def opens(self, limit: Limit = DEFAULT_LIMIT) -> SignIn:
        """Return another process's sign-in on the same store."""
        shop = self.shop
        asking = Throttle(shop.store, shop.clock, "sign-in", limit)
        return SignIn(
            shop.store,
            self.billing,
            shop.claims,
            self.mailbox,
            asking,
            shop.clock,
            base_url=BASE_URL,
        )

    async def mailed(self, email: str = MEMBERS) -> list[EmailMessage]:
        """Ask for a link as a page does, and return what was mailed."""
        await self.sign_in.mail_link(await self.sign_in.ask(email, ADDRESS))
        return [self.mailbox.mails.get_nowait() for _ in range(self.mailbox.mails.qsize())]

    async def link(self) -> str:
        """Return the token of a link that was mailed to the member."""
        (mail,) = await self.mailed()
        return token_in(mail)

    async def refused(self, link_token: str) -> ApiError:
        with pytest.raises(ApiError) as refusal:
            await self.sign_in.begin(link_token)
        assert link_token not in refusal.value.message
        return refusal.value

    def stored(self) -> bytes:
        return b"".join(file.read_bytes() for file in self.folder.iterdir())


def token_in(mail: EmailMessage) -> str:
    (line,) = [line for line in mail.get_content().splitlines() if line.startswith("http")]
    assert line.startswith(f"{BASE_URL}{PATH}")
    return line.removeprefix(f"{BASE_URL}{PATH}")


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    clock = ManualClock(NOON)
    billing, mailbox = HeldBilling(clock), Mailbox()
    async with opened(tmp_path / "access.db") as store:
        shop = Shop(store, clock, billing)
        billing.pays("cs_1")
        await shop.claim((await shop.checkout()).claim_token)
        asking = Throttle(store, clock, "sign-in", DEFAULT_LIMIT)
        sign_in = SignIn(store, billing, shop.claims, mailbox, asking, clock, base_url=BASE_URL)
        yield Door(shop, billing, mailbox, sign_in, tmp_path)


async def test_a_link_makes_a_session_of_who_it_was_mailed_to(door: Door) -> None:
    (mail,) = await door.mailed()
    assert mail["To"] == MEMBERS
    session = await door.sign_in.begin(token_in(mail))
    assert await door.sign_in.signed_in(session) == MEMBERS
    await door.sign_in.end(session)
    assert await door.sign_in.signed_in(session) is None
    assert await door.sign_in.signed_in("another") is None


async def test_a_link_is_used_once_however_many_use_it_at_once(door: Door) -> None:
    link, others = await door.link(), [door.opens() for _ in range(8)]
    came = await asyncio.gather(*(one.begin(link) for one in others), return_exceptions=True)
    (session,) = [one for one in came if isinstance(one, str)]
    assert {one.status for one in came if isinstance(one, ApiError)} == {404}
    assert await door.sign_in.signed_in(session) == MEMBERS
    assert (await door.refused(link)).status == 404


async def test_links_and_sessions_end_to_the_millisecond(door: Door) -> None:
    first, second, clock = await door.link(), await door.link(), door.shop.clock
    clock.now += LINK_MS - 1
    session = await door.sign_in.begin(first)
    clock.now += 1
    assert "older than 15 minutes" in (await door.refused(second)).message
    clock.now += SESSION_MS - 2
    assert await door.sign_in.signed_in(session) == MEMBERS
    clock.now += 1
    assert await door.sign_in.signed_in(session) is None


async def test_a_used_link_an_old_one_and_one_that_never_was_are_refused_alike(door: Door) -> None:
    used = await door.link()
    await door.sign_in.begin(used)
    never = (await door.refused("A" * 43)).message
    assert (await door.refused(used)).message == never


async def test_the_store_holds_no_token(door: Door) -> None:
    link = await door.link()
    session = await door.sign_in.begin(link)
    stored = door.stored()
    for token in (link, session):
        assert len(token) == 46
        assert hash_token(token) in stored
        assert token.encode() not in stored


async def test_a_mail_goes_to_the_address_that_the_processor_reported(door: Door) -> None:
    (mail,) = await door.mailed("A@EXAMPLE.COM")
    assert mail["To"] == MEMBERS
    assert "A@EXAMPLE.COM" not in str(mail)
    session = await door.sign_in.begin(token_in(mail))
    assert await door.sign_in.signed_in(session) == MEMBERS


async def test_who_is_no_member_is_answered_alike_and_mailed_nothing(door: Door) -> None:
    assert await door.sign_in.ask(STRANGERS, ADDRESS) == STRANGERS
    assert await door.sign_in.ask(MEMBERS, ADDRESS) == MEMBERS
    with capture_logs() as lines:
        assert await door.mailed(STRANGERS) == []
        assert len(await door.mailed()) == 1
    assert lines == []


async def test_an_ended_member_still_signs_in_and_one_of_another_provider_does_not(
    door: Door,
) -> None:
    (member,) = await door.shop.store.memberships("held")
    await door.shop.store.end_membership(member, NOON, "canceled")
    assert len(await door.mailed()) == 1
    door.billing.name = "other"
    assert await door.mailed() == []


async def test_who_paid_and_has_no_key_yet_is_mailed_too(door: Door) -> None:
    await door.shop.checkout(contact_email="Late@example.com")
    assert await door.mailed("late@example.com") == []
    door.shop.clock.now += door.billing.pending_holds_ms
    door.billing.says["cs_2"] = Paid("sub_2", "cus_2", "LATE@example.com")
    (mail,) = await door.mailed("late@example.com")
    assert mail["To"] == "LATE@example.com"


async def test_who_only_began_the_checkout_that_another_paid_is_mailed_nothing(door: Door) -> None:
    await door.shop.checkout(contact_email="beginner@example.com")
    door.billing.says["cs_2"] = Paid("sub_2", "cus_2", "payer@example.com")
    assert await door.mailed("beginner@example.com") == []


async def test_a_client_address_asks_for_so_many_links_whoever_they_are_for(door: Door) -> None:
    sign_in = door.opens(LIMIT)
    for email in (MEMBERS, STRANGERS, "nonsense@example.com"):
        await sign_in.ask(email, ADDRESS)
    refusals = []
    for email in (MEMBERS, STRANGERS):
        with pytest.raises(ApiError) as refusal:
            await sign_in.ask(email, ADDRESS)
        refusals.append((refusal.value.status, refusal.value.message, refusal.value.retry_after_s))
    assert refusals[0] == refusals[1]
    assert refusals[0][0] == 429
    assert await sign_in.ask(MEMBERS, "192.0.2.99") == MEMBERS


@pytest.mark.parametrize("email", ["", "nobody", "a@b@c", "a@example.com\r\nBcc: b@example.com"])
async def test_what_is_no_address_is_refused_before_anything_is_looked_up(
    door: Door, email: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        await door.sign_in.ask(email, ADDRESS)
    assert refusal.value.status == 400


async def test_a_mailbox_is_sent_so_many_mails_however_it_is_written_and_answers_alike(
    door: Door,
) -> None:
    written = ["a@example.com", "A@example.com", "a@EXAMPLE.com"]
    for number in range(MAILS.attempts):
        assert len(await door.mailed(written[number % 3])) == 1
    with capture_logs() as lines:
        for email in written:
            assert await door.mailed(email) == []
    assert [line["event"] for line in lines] == ["sign_in_not_mailed"] * 3
    assert "example.com" not in str(lines).lower()
    door.shop.clock.now += MAILS.window_s * 1000
    assert len(await door.mailed()) == 1


class Breaking(Mailbox):
    """A Mailer that fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def send(self, mail: EmailMessage) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [(MailError("mail.example:587 cannot be reached"), "reached"), (KeyError(MEMBERS), "KeyError")],
)
async def test_a_mail_that_cannot_leave_is_logged_without_a_word_of_it(
    door: Door, error: Exception, said: str
) -> None:
    door.mailbox = Breaking(error)
    sign_in = door.opens()
    with capture_logs() as lines:
        await sign_in.mail_link(MEMBERS)
    (line,) = lines
    assert line["event"] == "sign_in_not_mailed"
    assert said in str(line)
    assert MEMBERS not in str(line)
    assert PATH not in str(line)


async def test_a_processor_that_cannot_be_asked_is_logged_and_the_answer_stays_the_same(
    door: Door,
) -> None:
    await door.shop.checkout(contact_email="late@example.com")
    door.billing.says["cs_2"] = BillingError("down")
    with capture_logs() as lines:
        assert await door.mailed("late@example.com") == []
    assert [line["event"] for line in lines] == ["billing_unavailable", "sign_in_not_mailed"]
    assert "late@example.com" not in str(lines)


async def test_the_processor_is_asked_of_a_few_checkouts_of_a_mailbox_alone(door: Door) -> None:
    for _ in range(8):
        await door.shop.checkout(contact_email="late@example.com")
    door.billing.checks.clear()
    await door.mailed("late@example.com")
    assert len(door.billing.checks) == MOST_ASKED


async def test_a_membership_of_another_mode_signs_in_for_what_it_was(door: Door) -> None:
    member = replace(MEMBER, provider="held", mode="test", contact_email="old@example.com")
    async with door.shop.store._engine.writing() as db:
        await db.rows(
            "UPDATE memberships SET mode = ?, contact_email = ? WHERE provider = ? RETURNING 1",
            member.mode,
            member.contact_email,
            member.provider,
        )
    assert len(await door.mailed("old@example.com")) == 1
