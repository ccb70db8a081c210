"""Purchases in the access store: checkouts, claims, memberships and the processor's events."""

from dataclasses import astuple
from typing import Any

from schemas.vocabulary import Mode
from store.access_rows import (
    ClaimRow,
    MembershipRow,
    Redemption,
    SandboxSession,
    SandboxStatus,
    StoredMembership,
    normalize_email,
)
from store.sql import access_statements as statements
from store.sql.database import Engine


class PurchaseStore:
    """The part of `AccessStore` that stores purchases; see there."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create_claim(self, claim: ClaimRow) -> None:
        """Store a checkout; idempotent."""
        async with self._engine.begin_durable_write() as db:
            await db.execute(statements.INSERT_CLAIM, *astuple(claim)[:-1])

    async def find_claim(self, token_hash: bytes) -> ClaimRow | None:
        """Return the checkout with this claim token, or None."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(statements.FIND_CLAIM, token_hash)
        return ClaimRow(**rows[0]) if rows else None

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
        async with self._engine.begin_durable_write() as db:
            if not await db.execute(statements.REDEEM_CLAIM, redeemed_at, claim.id):
                return False
            inserted = await db.execute(statements.INSERT_MEMBERSHIP, *astuple(membership))
            if not inserted:
                # Two claims on one subscription mean one payment, so the second gives no key.
                # Returning commits redeemed_at: a repeated claim gets 409, not another check.
                return False
            if key_hash is None:
                return True
            key = (key_hash, claim.agent_name, redeemed_at, membership.mode, inserted[0]["id"])
            key_id = (await db.execute(statements.INSERT_PURCHASED_KEY, *key))[0]["id"]
            await db.execute("UPDATE claims SET key_id = ? WHERE id = ?", key_id, claim.id)
        return True

    async def find_redemption(self, claim_id: str) -> Redemption | None:
        """Return what became of the membership of a claim, or None if the claim gave no key."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(statements.FIND_REDEMPTION, claim_id)
        return Redemption(**rows[0]) if rows else None

    async def list_unredeemed_claims(
        self, email: str, provider: str, mode: Mode, limit: int
    ) -> list[ClaimRow]:
        """Return the newest unredeemed checkouts of a mailbox with a provider, newest first."""
        filters = normalize_email(email), provider, mode
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(statements.LIST_UNREDEEMED_CLAIMS, *filters, limit)
        return [ClaimRow(**row) for row in rows]

    async def list_lapsed_claims(
        self, provider: str, mode: Mode, before: int, limit: int
    ) -> list[ClaimRow]:
        """Return unredeemed checkouts with a provider that ended before a time, in random order."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(statements.LIST_LAPSED_CLAIMS, before, provider, mode, limit)
        return [ClaimRow(**row) for row in rows]

    async def delete_claim(self, claim: ClaimRow) -> bool:
        """Delete a checkout unless it is redeemed by now; return whether it was deleted."""
        async with self._engine.begin_write() as db:
            return bool(await db.execute(statements.DELETE_CLAIM, claim.id))

    async def undo_redemption(self, claim: ClaimRow, membership: MembershipRow) -> None:
        """Delete the membership and the key of a claim, which nobody has got yet."""
        subscription_key = membership.provider, membership.subscription
        async with self._engine.begin_durable_write() as db:
            if await db.execute(statements.UNDO_REDEMPTION, claim.id, *subscription_key):
                await db.execute(statements.DELETE_CLAIMED_KEY, *subscription_key)
                await db.execute(statements.DELETE_MEMBERSHIP, *subscription_key)

    async def list_open_memberships(
        self, provider: str, customer: str | None = None
    ) -> list[StoredMembership]:
        """Return a provider's memberships whose subscription can be paid, oldest first.

        Those of all customers if `customer` is None. Some have ended.
        """
        async with self._engine.acquire_connection() as db:
            if customer is None:
                rows = await db.execute(statements.LIST_OPEN_MEMBERSHIPS, provider)
            else:
                rows = await db.execute(
                    statements.LIST_OPEN_MEMBERSHIPS_OF_CUSTOMER, provider, customer
                )
        return [parse_membership(**row) for row in rows]

    async def resume_membership(self, membership: MembershipRow) -> None:
        """Make a membership active again; its revoked keys stay revoked."""
        subscription_key = membership.provider, membership.subscription
        async with self._engine.begin_durable_write() as db:
            await db.execute(statements.RESUME_MEMBERSHIP, *subscription_key)

    async def end_membership(
        self, membership: MembershipRow, ended_at: int, reason: str, *, is_final: bool = True
    ) -> int:
        """End a membership and revoke its live keys; return how many keys were revoked.

        `is_final` if its subscription cannot be paid again.
        """
        subscription_key = membership.provider, membership.subscription
        closed_at = ended_at if is_final else None
        async with self._engine.begin_durable_write() as db:
            ended = await db.execute(
                statements.END_MEMBERSHIP, ended_at, reason, closed_at, *subscription_key
            )
            if not ended:
                return 0
            # On PostgreSQL a concurrent create_member_key may have read the membership as active.
            # The lock waits for its commit, so that the revocation below sees the new key.
            await db.acquire_named_lock("keys of a membership", str(ended[0]["id"]))
            revocation = statements.REVOKE_KEYS_OF_MEMBERSHIP, ended_at, ended[0]["id"]
            return len(await db.execute(*revocation))

    async def list_memberships_by_email(self, email: str) -> list[StoredMembership]:
        """Return every membership of a mailbox, active or ended, oldest first."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(statements.LIST_MEMBERSHIPS_BY_EMAIL, normalize_email(email))
        return [parse_membership(**row) for row in rows]

    async def is_event_handled(self, event_id: str) -> bool:
        """Return whether a webhook event was already handled."""
        async with self._engine.acquire_connection() as db:
            return bool(await db.execute("SELECT 1 FROM events WHERE id = ?", event_id))

    async def mark_event_handled(self, event_id: str, handled_at: int) -> None:
        """Record that a webhook event was handled; idempotent."""
        sql = "INSERT INTO events (id, handled_at) VALUES (?, ?) ON CONFLICT DO NOTHING"
        async with self._engine.begin_durable_write() as db:
            await db.execute(sql, event_id, handled_at)

    async def create_sandbox_session(self, session: SandboxSession) -> None:
        """Store a checkout of the sandbox; idempotent."""
        sql = "INSERT INTO sandbox_sessions VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        async with self._engine.begin_durable_write() as db:
            await db.execute(sql, *astuple(session))

    async def find_sandbox_session(self, session_id: str) -> SandboxSession | None:
        """Return a checkout of the sandbox, or None."""
        sql = (
            "SELECT id, claim_id, contact_email, billing, amount_usd, status, expires_at "
            "FROM sandbox_sessions WHERE id = ?"
        )
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(sql, session_id)
        return SandboxSession(**rows[0]) if rows else None

    async def settle_sandbox_session(self, session_id: str, status: SandboxStatus) -> None:
        """Mark an open checkout as paid or cancelled; a settled one does not change."""
        sql = "UPDATE sandbox_sessions SET status = ? WHERE id = ? AND status = 'open'"
        async with self._engine.begin_durable_write() as db:
            await db.execute(sql, status, session_id)


def parse_membership(
    *,
    id: int,
    ended_at: int | None,
    ended_reason: str | None,
    closed_at: int | None,
    **membership: Any,
) -> StoredMembership:
    """Return the membership of a row."""
    return StoredMembership(id, MembershipRow(**membership), ended_at, ended_reason, closed_at)
