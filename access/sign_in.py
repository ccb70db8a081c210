"""How members sign in: a link is mailed to the address that the payment processor reported.

A link works once and for minutes, and makes a session; both are stored as hashes alone. Whoever
asks for a link learns nothing of who is a member.
"""

import secrets
from hashlib import sha256

import structlog

from access.billing.provider import Provider
from access.claims import Claims
from access.email_address import parse_contact_email
from access.mail.mailer import Mailer, MailError, build_mail
from access.throttle import Limit, Throttle
from schemas.clock import Clock
from schemas.errors import ApiError, describe_failure
from schemas.vocabulary import DAY_MS
from store.access_rows import SignInRow, normalize_email
from store.sql.access_store import AccessStore

LINK_MINUTES = 15
LINK_MS = LINK_MINUTES * 60_000
SESSION_MS = 7 * DAY_MS
# What a mailbox is sent at most, whoever asks.
MAIL_LIMIT = Limit(5, 3600)
SIGN_IN_PATH = "/sign-in/"

log = structlog.get_logger("sign_in")


class SignIn:
    """Lets the members of one access store in; `clock` tells epoch ms.

    `request_throttle` limits requests by client address.
    """

    def __init__(
        self,
        store: AccessStore,
        provider: Provider,
        claims: Claims,
        mailer: Mailer,
        request_throttle: Throttle,
        clock: Clock,
        *,
        base_url: str,
    ) -> None:
        self._store = store
        self._provider = provider
        self._claims = claims
        self._mailer = mailer
        self._request_throttle = request_throttle
        self._mail_throttle = Throttle(store, clock, "sign-in-mail", MAIL_LIMIT)
        self._clock = clock
        self._link_base = f"{base_url}{SIGN_IN_PATH}"

    async def request_link(self, email: str, address: str) -> str:
        """Return the address that `mail_link` is to be called with, once the asker has his answer.

        ApiError 400 for what is no address, 429 for too many from a client address.
        """
        normalized = parse_contact_email(
            email, accepts_special_use=self._provider.accepts_special_use_email
        )
        await self._request_throttle.take_attempt(address)
        return normalized

    async def redeem_link(self, link_token: str) -> str:
        """Use a link up and return the token of the session that it makes.

        ApiError 404 where it was used before, is older than minutes, or never was one.
        """
        session_token, now = f"ss_{secrets.token_urlsafe(32)}", self._clock()
        email = await self._store.sign_in(
            hash_token(link_token), hash_token(session_token), now, now + SESSION_MS
        )
        if email is None:
            raise ApiError(
                "invalid_parameter",
                f"This link was used before, is older than {LINK_MINUTES} minutes, or was not "
                "copied whole. Ask for another one.",
                404,
            )
        return session_token

    async def find_session_email(self, session_token: str) -> str | None:
        """Return the e-mail address whose session a token is, None for none that lasts."""
        session = await self._store.find_session(hash_token(session_token), self._clock())
        return None if session is None else session.contact_email

    async def sign_out(self, session_token: str) -> None:
        """Sign out everywhere; idempotent."""
        await self._store.end_sessions(hash_token(session_token))

    async def mail_link(self, email: str) -> None:
        """Mail a link where an address is a member's; what goes wrong is logged, not raised.

        An answer that waited for it, or told of it, would tell who is a member.
        """
        try:
            # Before anything is looked up, for the processor may have to be asked.
            await self._mail_throttle.take_attempt(normalize_email(email))
            reported = await self._find_reported_email(email)
            if reported is not None:
                await self._send_link(reported)
        except ApiError as error:
            log.warning("sign_in_not_mailed", why=error.message)
        except MailError as error:
            log.error("sign_in_not_mailed", why=str(error))
        except Exception as error:
            log.error("sign_in_not_mailed", **describe_failure(error))

    async def _find_reported_email(self, email: str) -> str | None:
        """Return how the processor wrote the address of who bought here, None for nobody."""
        for membership in reversed(await self._store.list_memberships_by_email(email)):
            if membership.row.provider == self._provider.name:
                return membership.row.contact_email
        for _, payment in await self._claims.list_unredeemed(email):
            return payment.contact_email
        return None

    async def _send_link(self, email: str) -> None:
        """Mail to the address that the processor reported, not to the one that was typed in."""
        token, now = f"sl_{secrets.token_urlsafe(32)}", self._clock()
        await self._store.create_sign_in_link(SignInRow(hash_token(token), email, now + LINK_MS))
        text = (
            f"You asked to sign in to Signals. Open this link:\n\n{self._link_base}{token}\n\n"
            f"The link works once and expires after {LINK_MINUTES} minutes. If you didn't ask to "
            "sign in, ignore this e-mail."
        )
        await self._mailer.send(build_mail(email, "Sign in to Signals", text, now))


def hash_token(token: str) -> bytes:
    """Return the SHA-256 of a token; it is 256 random bits, so a slow hash would add nothing."""
    return sha256(token.encode()).digest()
