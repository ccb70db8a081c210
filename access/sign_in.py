"""Sign-in of members by a link, mailed to the address that the payment processor reported.

A link works once, for a few minutes, and creates a session; only hashes of both are stored. Neither
the response to a sign-in request nor the work that follows it reveals whether the address belongs
to a member. The owner of the service signs in by a link that a command prints, with any billing
mode. No key opens a session: operators give keys to others.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage

import structlog

from access.billing.provider import Provider
from access.contact import parse_contact_email
from access.keys_and_quota import hash_key
from access.mail import Mailer, MailError, build_mail
from access.purchases import Claims
from access.throttle import Limit, Throttle, find_client
from schemas.errors import ApiError, describe_failure
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.vocabulary import DAY_MS, Clock
from store.access_rows import SignInRow, normalize_email
from store.sql.access_store import AccessStore
from store.store_errors import StoreError

# A link may wait in a mailbox that others can open later, so it lasts only minutes. A session can
# only create keys, which the member sees in a list and can revoke.
LINK_MINUTES = 15
LINK_MS = LINK_MINUTES * 60_000
SESSION_MS = 7 * DAY_MS
# Per mailbox and client, so that a stranger uses up no mails of a member.
MAILBOX_LIMIT = Limit(5, 3600)
# Per mailbox, for all clients together. A request within the minute waits for its end, and only the
# newest of those that wait is mailed.
MAIL_LIMIT = Limit(1, 60)
# Only members get mail, so it is sent at a random time (seconds) after all else. Otherwise clients
# could see by the delay of their own requests that a mail was sent.
MIN_MAIL_DELAY_S, MAX_MAIL_DELAY_S = 1.0, 5.0
# Pauses before a mail is sent again that its server refused for now, 30 minutes in sum. Servers
# that delay strangers (greylisting) accept them after 1 to 15 minutes.
RETRY_PAUSES_S = (60, 120, 240, 480, 900)
SIGN_IN_PATH = "/sign-in/"
BUYING_REASON = (
    "You started to buy a plan of Signals, and this address has bought one before. If that plan is "
    "active, you need not pay again: sign in and create a key."
)
# Stands for the e-mail address that the owner does not have. No mailbox has this name.
OWNER = "owner"

log = structlog.get_logger("sign_in")


class SignIn:
    """Mails sign-in links and manages sessions; `clock` returns epoch ms, `sleep` takes seconds.

    `request_throttle` limits requests per client address.
    """

    def __init__(
        self,
        store: AccessStore,
        provider: Provider,
        claims: Claims,
        mailer: Mailer,
        request_throttle: Throttle,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]],
        *,
        base_url: str,
        operator: Operator = UNNAMED_OPERATOR,
    ) -> None:
        self._store = store
        self._provider = provider
        self._claims = claims
        self._mailer = mailer
        self._request_throttle = request_throttle
        self._mailbox_throttle = Throttle(store, clock, "sign-in-mail", MAILBOX_LIMIT)
        self._mail_throttle = Throttle(store, clock, "sign-in-mail", MAIL_LIMIT)
        # The newest request that waits for each mailbox.
        self._waiting: dict[str, object] = {}
        self._retries = set[asyncio.Task[None]]()
        self._clock = clock
        self._sleep = sleep
        self._operator = operator
        self._link_base = f"{base_url}{SIGN_IN_PATH}"

    async def request_link(self, email: str, address: str) -> tuple[str, int]:
        """Return the normalized e-mail address, and in how many seconds its link is mailed.

        Call `mail_link` with both after responding. Raise ApiError 400 if the address is not valid,
        429 if the client made too many requests, in total or for this mailbox.
        """
        normalized = parse_contact_email(
            email, accepts_special_use=self._provider.accepts_special_use_email
        )
        await self._request_throttle.take_attempt(address)
        return normalized, await self._reserve_mail(normalized, address)

    async def redeem_link(self, link_token: str) -> tuple[str, bool]:
        """Exchange a link for a session; return the session's token, and whether it is the owner's.

        Raise ApiError 404 if the link was used before, has expired or is unknown.
        """
        session_token, now = f"ss_{secrets.token_urlsafe(32)}", self._clock()
        email = await self._store.sign_in(
            hash_key(link_token), hash_key(session_token), now, now + SESSION_MS
        )
        if email is None:
            raise ApiError(
                "invalid_parameter",
                f"This link was already used, is older than {LINK_MINUTES} minutes, or is "
                "incomplete. Request a new one.",
                404,
            )
        return session_token, email == OWNER

    async def find_session(self, session_token: str) -> SignInRow | None:
        """Return a session, None if it is unknown or has expired."""
        return await self._store.find_session(hash_key(session_token), self._clock())

    async def sign_out(self, session_token: str) -> None:
        """End every session of the member, or of the owner, who owns this one; idempotent."""
        await self._store.end_sessions(hash_key(session_token))

    async def mail_buyer(self, email: str, address: str) -> None:
        """Mail a link for an order of `email`, which says that the mailbox had a plan before.

        Failures are logged, as by `mail_link`; `address` is the client's.
        """
        try:
            wait_s = await self._reserve_mail(email, address)
        except ApiError as error:
            log.warning("sign_in_not_mailed", why=error.message)
        else:
            await self.mail_link(email, wait_s, is_buying=True)

    async def mail_link(
        self, email: str, wait_s: int, pending_id: str | None = None, *, is_buying: bool = False
    ) -> None:
        """Mail a link if the address is a member's; log failures instead of raising them.

        If it waits, a newer request replaces it. The link leads on to the authorization request
        `pending_id`, if one is given.
        """
        # Runs after the response, whose status, body, headers and time would otherwise reveal who
        # is a member. The work up to the pause is the same for everyone: the same statements, the
        # same requests to the processor, one link stored and one mail built. Requests that wait for
        # the store or the event loop meanwhile would otherwise reveal it.
        with _log_failures():
            if not wait_s:
                # Ends the retries of an earlier mail.
                self._waiting.pop(normalize_email(email), None)
            # First, because the lookup may send requests to the processor.
            elif not await self._await_turn(normalize_email(email), wait_s):
                return
            reported = await self._find_reported_email(email)
            mail = await self._create_link_mail(email, reported, pending_id, is_buying)
            await self._sleep(secrets.SystemRandom().uniform(MIN_MAIL_DELAY_S, MAX_MAIL_DELAY_S))
            if reported is None:
                return
            try:
                await self._mailer.send(mail)
            except MailError as error:
                if not error.is_temporary:
                    raise
                log.warning("sign_in_mail_delayed", why=str(error), retry_s=RETRY_PAUSES_S[0])
                # A task of its own, so that the request ends.
                this = self._waiting[normalize_email(email)] = object()
                retry = asyncio.create_task(self._send_later(this, reported, pending_id, is_buying))
                self._retries.add(retry)
                retry.add_done_callback(self._retries.discard)

    async def _send_later(
        self, this: object, reported: str, pending_id: str | None, is_buying: bool
    ) -> None:
        """Mail a new link; try again while the server refuses for now or the store fails.

        `this` is the request, which a newer one replaces. The last failure is logged.
        """
        mailbox = normalize_email(reported)
        try:
            with _log_failures():
                for number, pause_s in enumerate(RETRY_PAUSES_S, 1):
                    await self._sleep(pause_s)
                    # A newer request has mailed a link meanwhile, or waits to.
                    if self._waiting.get(mailbox) is not this:
                        return
                    try:
                        # A new link, because the first one would expire first.
                        mail = await self._create_link_mail(
                            reported, reported, pending_id, is_buying
                        )
                        await self._mailer.send(mail)
                        return
                    except (MailError, StoreError) as error:
                        is_final = isinstance(error, MailError) and not error.is_temporary
                        if is_final or number == len(RETRY_PAUSES_S):
                            raise
        finally:
            if self._waiting.get(mailbox) is this:
                del self._waiting[mailbox]

    async def _reserve_mail(self, email: str, address: str) -> int:
        """Count a request for a mailbox; return in how many seconds its mail may be sent."""
        mailbox = normalize_email(email)
        await self._mailbox_throttle.take_attempt(
            f"{mailbox} {find_client(address)}", is_mailbox=True
        )
        try:
            await self._mail_throttle.take_attempt(mailbox, is_mailbox=True)
        except ApiError as refusal:
            return refusal.retry_after_s or 0
        return 0

    async def _await_turn(self, mailbox: str, wait_s: int) -> bool:
        """Wait; return whether no newer request replaced this one.

        Raise ApiError 429 if another process has mailed meanwhile.
        """
        this = self._waiting[mailbox] = object()
        await self._sleep(wait_s)
        if self._waiting.get(mailbox) is not this:
            return False
        del self._waiting[mailbox]
        await self._mail_throttle.take_attempt(mailbox, is_mailbox=True)
        return True

    async def _find_reported_email(self, email: str) -> str | None:
        """Return a member's address as the processor reported it, None if there is no member."""
        memberships = await self._store.list_memberships_by_email(email)
        # A buyer whose agent lost the claim token has no membership yet, but can claim the key.
        # Looked up for members too, so that both cases take the same time.
        emails: list[str] = []
        try:
            unredeemed = await self._claims.list_unredeemed(email)
            emails += [payment.contact_email for _, payment in unredeemed[:1]]
        except ApiError as error:
            # The processor is unavailable, which keeps no member from signing in.
            log.warning("sign_in_payments_unknown", why=error.message)
        emails += [
            membership.contact_email
            for membership in memberships
            if membership.provider == self._provider.name
        ]
        return emails[-1] if emails else None

    async def _create_link_mail(
        self, email: str, reported: str | None, pending_id: str | None, is_buying: bool
    ) -> EmailMessage:
        """Store a new link and return its mail; without a member, a link that cannot be used."""
        token, now = f"sl_{secrets.token_urlsafe(32)}", self._clock()
        link = (
            # It has expired, so maintenance deletes it, and it holds no address of a stranger.
            SignInRow(hash_key(token), "", now)
            if reported is None
            else SignInRow(hash_key(token), reported, now + LINK_MS)
        )
        await self._store.create_sign_in_link(link)
        # The mail says that a program is to be connected, but not its name: anyone can request this
        # mail for a program of any name, and would write to members in our own name.
        purpose, query = (
            ("", "") if pending_id is None else (" to connect a program", f"?request={pending_id}")
        )
        reason, origin = f"You asked to sign in to Signals{purpose}.", "didn't ask to sign in"
        if is_buying:
            reason, origin = BUYING_REASON, "didn't start to buy a plan"
        text = (
            f"{reason} Open this link to continue:\n\n"
            f"{self._link_base}{token}{query}\n\n"
            f"The link works once and expires after {LINK_MINUTES} minutes.\n"
            f"If you {origin}, ignore this e-mail."
        )
        if self._operator.introduction:
            text += f"\n\n{self._operator.introduction}"
        return build_mail(reported or email, "Sign in to Signals", text, now)


@contextmanager
def _log_failures() -> Iterator[None]:
    """Log why a mail was not sent, instead of raising it."""
    try:
        yield
    except ApiError as error:
        log.warning("sign_in_not_mailed", why=error.message)
    except MailError as error:
        log.error("sign_in_not_mailed", why=str(error))
    except asyncio.CancelledError:
        # The process stops. Nothing follows here, and an error would hide what else went wrong.
        log.warning("sign_in_not_mailed", why="the service stopped before the mail was due")
    except Exception as error:
        log.error("sign_in_not_mailed", **describe_failure(error))


async def create_owner_link(store: AccessStore, clock: Clock, base_url: str) -> str:
    """Store a new sign-in link of the owner and return its address, for the only time."""
    token = f"sl_{secrets.token_urlsafe(32)}"
    expires_at = clock() + LINK_MS
    await store.create_sign_in_link(SignInRow(hash_key(token), OWNER, expires_at, True))
    return f"{base_url.rstrip('/')}{SIGN_IN_PATH}{token}"
