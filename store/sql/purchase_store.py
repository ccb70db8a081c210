"""Purchases in the access store: checkouts, claims, memberships and the processor's events."""

from dataclasses import astuple

from schemas.vocabulary import Mode
from store.access_rows import (
    ClaimRow,
    MembershipRow,
    SandboxSession,
    SandboxStatus,
    normalize_email,
)
from store.sql.key_store import KeyStore

_SELECT_CLAIMS = """
SELECT id, token_hash, provider, mode, session, contact_email, billing, agent_name, created_at,
  expires_at, checkout_url, redeemed_at
FROM claims
"""
INSERT_CLAIM = """
INSERT INTO claims (id, token_hash, provider, mode, session, contact_email, billing, agent_name,
  created_at, expires_at, checkout_url)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING
"""
SELECT_MEMBERSHIPS = """
SELECT id, ended_at, ended_why AS ended_reason, closed_at, provider, mode, subscription, customer,
  contact_email, billing, created_at
FROM memberships
"""


class PurchaseStore(KeyStore):
    """The part of `AccessStore` that stores purchases; see there."""

    async def create_claim(self, claim: ClaimRow) -> None:
        """Store a checkout; idempotent."""
        await self._write(INSERT_CLAIM, *astuple(claim)[:-1])

    async def find_claim(self, token_hash: bytes) -> ClaimRow | None:
        """Return the checkout with this claim token, or None."""
        return await self._find(ClaimRow, f"{_SELECT_CLAIMS} WHERE token_hash = ?", token_hash)

    async def redeem_claim(
        self,
        claim: ClaimRow,
        membership: MembershipRow,
        key_hash: bytes | None,
        redeemed_at: int,
    ) -> bool:
        """Store the membership and the one key of a claim; return whether that was done.

        Without a `key_hash`, store only the membership. Return False if the claim was redeemed
        before, or if its subscription already has a membership. The claim counts as redeemed in
        either case.
        """
        async with self._engine.begin_write(is_durable=True) as db:
            redeem_sql = (
                "UPDATE claims SET redeemed_at = ? WHERE id = ? AND redeemed_at IS NULL RETURNING 1"
            )
            if not await db.execute(redeem_sql, redeemed_at, claim.id):
                return False
            inserted = await db.execute(
                """
INSERT INTO memberships
  (provider, mode, subscription, customer, contact_email, billing, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (provider, subscription) DO NOTHING RETURNING id
""",
                *astuple(membership)[:7],
            )
            if not inserted:
                # Two claims on one subscription mean one payment, so the second gives no key.
                # Returning commits redeemed_at: a repeated claim gets 409, not another check.
                return False
            if key_hash is None:
                return True
            keys = await db.execute(
                """
INSERT INTO keys (key_hash, label, created_at, mode, membership_id) VALUES (?, ?, ?, ?, ?)
RETURNING id
""",
                *(key_hash, claim.agent_name, redeemed_at, membership.mode, inserted[0]["id"]),
            )
            set_key_sql = "UPDATE claims SET key_id = ? WHERE id = ?"
            await db.execute(set_key_sql, keys[0]["id"], claim.id)
        return True

    async def find_redemption(self, claim_id: str) -> MembershipRow | None:
        """Return the membership of a redeemed claim, or None if the claim gave no key."""
        sql = f"""
{SELECT_MEMBERSHIPS}
WHERE id = (SELECT membership_id FROM claims JOIN keys ON keys.id = key_id WHERE claims.id = ?)
"""
        return await self._find(MembershipRow, sql, claim_id)

    async def list_unredeemed_claims(
        self, email: str, provider: str, mode: Mode, limit: int
    ) -> list[ClaimRow]:
        """Return the newest unredeemed checkouts of a mailbox with a provider, newest first."""
        sql = f"""
{_SELECT_CLAIMS}
WHERE lower(contact_email) = ? AND provider = ? AND mode = ? AND redeemed_at IS NULL
ORDER BY created_at DESC LIMIT ?
"""
        return await self._list(ClaimRow, sql, normalize_email(email), provider, mode, limit)

    async def list_lapsed_claims(
        self, provider: str, mode: Mode, before: int, limit: int
    ) -> list[ClaimRow]:
        """Return unredeemed checkouts with a provider that ended before a time, in random order."""
        # In random order, so that claims that stay do not keep the others from their turn.
        sql = f"""
{_SELECT_CLAIMS}
WHERE redeemed_at IS NULL AND expires_at < ? AND provider = ? AND mode = ?
ORDER BY random() LIMIT ?
"""
        return await self._list(ClaimRow, sql, before, provider, mode, limit)

    async def delete_claim(self, claim: ClaimRow) -> bool:
        """Delete a checkout unless it is redeemed by now; return whether it was deleted."""
        sql = "DELETE FROM claims WHERE redeemed_at IS NULL AND id = ? RETURNING 1"
        async with self._engine.begin_write() as db:
            return bool(await db.execute(sql, claim.id))

    async def undo_redemption(self, claim: ClaimRow, membership: MembershipRow) -> None:
        """Delete the membership and the key of a claim, which nobody has got yet."""
        subscription_key = membership.provider, membership.subscription
        async with self._engine.begin_write(is_durable=True) as db:
            # The membership stays if its member has created another key meanwhile, and then the
            # claim too.
            undone = await db.execute(
                """
UPDATE claims SET redeemed_at = NULL, key_id = NULL
WHERE id = ? AND NOT EXISTS (
  SELECT 1 FROM keys JOIN memberships ON memberships.id = keys.membership_id
  WHERE provider = ? AND subscription = ? AND keys.id <> coalesce(claims.key_id, 0)
) RETURNING 1
""",
                *(claim.id, *subscription_key),
            )
            if not undone:
                return
            for sql in (
                "DELETE FROM keys WHERE membership_id = ("
                "SELECT id FROM memberships WHERE provider = ? AND subscription = ?) RETURNING 1",
                "DELETE FROM memberships WHERE provider = ? AND subscription = ? RETURNING 1",
            ):
                await db.execute(sql, *subscription_key)

    async def list_open_memberships(
        self, provider: str, customer: str | None = None
    ) -> list[MembershipRow]:
        """Return a provider's memberships whose subscription can be paid, oldest first.

        Those of all customers if `customer` is None. Some have ended.
        """
        customers = () if customer is None else (customer,)
        sql = (
            f"{SELECT_MEMBERSHIPS} WHERE provider = ? AND closed_at IS NULL "
            f"{'AND customer = ?' if customers else ''} ORDER BY id"
        )
        return await self._list(MembershipRow, sql, provider, *customers)

    async def resume_membership(self, membership: MembershipRow) -> None:
        """Make a membership active again; its revoked keys stay revoked."""
        sql = (
            "UPDATE memberships SET ended_at = NULL, ended_why = NULL "
            "WHERE provider = ? AND subscription = ? AND closed_at IS NULL RETURNING 1"
        )
        await self._write(sql, membership.provider, membership.subscription)

    async def end_membership(
        self, membership: MembershipRow, ended_at: int, reason: str, *, is_final: bool = True
    ) -> int:
        """End a membership and revoke its live keys; return how many keys were revoked.

        `is_final` if its subscription cannot be paid again.
        """
        async with self._engine.begin_write(is_durable=True) as db:
            ended = await db.execute(
                """
UPDATE memberships SET ended_at = coalesce(ended_at, ?), ended_why = ?, closed_at = ?
WHERE provider = ? AND subscription = ? AND closed_at IS NULL RETURNING id
""",
                *(ended_at, reason, ended_at if is_final else None),
                *(membership.provider, membership.subscription),
            )
            if not ended:
                return 0
            # On PostgreSQL a concurrent create_member_key may have read the membership as active.
            # The lock waits for its commit, so that the revocation below sees the new key.
            await db.acquire_named_lock("keys of a membership", str(ended[0]["id"]))
            revoke_sql = (
                "UPDATE keys SET revoked_at = ? "
                "WHERE membership_id = ? AND revoked_at IS NULL RETURNING id"
            )
            return len(await db.execute(revoke_sql, ended_at, ended[0]["id"]))

    async def list_memberships_by_email(self, email: str) -> list[MembershipRow]:
        """Return every membership of a mailbox, active or ended, oldest first."""
        sql = f"{SELECT_MEMBERSHIPS} WHERE lower(contact_email) = ? ORDER BY id"
        return await self._list(MembershipRow, sql, normalize_email(email))

    async def is_event_handled(self, event_id: str) -> bool:
        """Return whether a webhook event was already handled."""
        return bool(await self._read("SELECT 1 FROM events WHERE id = ?", event_id))

    async def mark_event_handled(self, event_id: str, handled_at: int) -> None:
        """Record that a webhook event was handled; idempotent."""
        sql = "INSERT INTO events (id, handled_at) VALUES (?, ?) ON CONFLICT DO NOTHING"
        await self._write(sql, event_id, handled_at)

    async def create_sandbox_session(self, session: SandboxSession) -> None:
        """Store a checkout of the sandbox; idempotent."""
        sql = "INSERT INTO sandbox_sessions VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        await self._write(sql, *astuple(session))

    async def find_sandbox_session(self, session_id: str) -> SandboxSession | None:
        """Return a checkout of the sandbox, or None."""
        sql = (
            "SELECT id, claim_id, contact_email, billing, amount_usd, status, expires_at "
            "FROM sandbox_sessions WHERE id = ?"
        )
        return await self._find(SandboxSession, sql, session_id)

    async def settle_sandbox_session(self, session_id: str, status: SandboxStatus) -> None:
        """Mark an open checkout as paid or cancelled; a settled one does not change."""
        sql = "UPDATE sandbox_sessions SET status = ? WHERE id = ? AND status = 'open'"
        await self._write(sql, status, session_id)
