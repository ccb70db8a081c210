"""Creates sessions of members directly in the store, without a purchase or a mail."""

import secrets

from access.keys import hash_key
from access.sign_in import SESSION_MS, hash_token
from schemas.vocabulary import Clock
from store.access_rows import ClaimRow, MembershipRow, SignInRow
from store.sql.access_store import AccessStore

EMAIL = "viewer@example.com"


async def create_session_cookie(
    access: AccessStore, clock: Clock, *, is_member: bool = True
) -> str:
    """Return the session cookie of a new member, or of a former one if `is_member` is false."""
    token, now = secrets.token_urlsafe(32), clock()
    # Each session has its own mailbox, because signing out ends all sessions of a mailbox.
    email = f"{token[:8]}-{EMAIL}"
    member = MembershipRow("sandbox", "test", f"sb_{token}", f"sb_{token}", email, "monthly", now)
    claim = ClaimRow(
        id=token,
        token_hash=hash_token(f"claim {token}"),
        provider="sandbox",
        mode="test",
        session=member.subscription,
        contact_email=email,
        billing="monthly",
        agent_name=None,
        created_at=now,
        expires_at=now,
    )
    await access.create_claim(claim)
    await access.redeem_claim(claim, member, hash_key(token), now)
    if not is_member:
        await access.end_membership(member, now, "the test ended it")
    link = SignInRow(hash_token(f"link {token}"), email, now + 1)
    await access.create_sign_in_link(link)
    await access.sign_in(link.token_hash, hash_token(token), now, now + SESSION_MS)
    return f"signals_session={token}"
