"""The access store, whatever engine holds it."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Protocol

from schemas.vocabulary import Mode
from store.access_rows import (
    AccessRequestRow,
    CallGroup,
    ClaimRow,
    CountedGroup,
    Horizons,
    KeyRow,
    MembershipRow,
    Notice,
    SandboxSession,
    SandboxStatus,
)
from store.database import Engine

KEYS = """
SELECT id, label, created_at, revoked_at, mode, membership_id,
  (SELECT max(last_at) FROM usage WHERE key_id = keys.id)
FROM keys ORDER BY id
"""
CLAIM = """
SELECT id, token_hash, provider, mode, session, contact_email, billing, agent_name, created_at,
  expires_at, redeemed_at
FROM claims WHERE token_hash = ?
"""
NEW_CLAIM = """
INSERT INTO claims (id, token_hash, provider, mode, session, contact_email, billing, agent_name,
  created_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
TAKE_CLAIM = """
UPDATE claims SET redeemed_at = ? WHERE id = ? AND redeemed_at IS NULL RETURNING 1
"""
NEW_MEMBERSHIP = """
INSERT INTO memberships
  (provider, mode, subscription, customer, contact_email, billing, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id
"""
NEW_BOUGHT_KEY = """
INSERT INTO keys (key_hash, label, created_at, mode, membership_id) VALUES (?, ?, ?, ?, ?)
RETURNING id
"""
_LIVE_MEMBERSHIPS = """
SELECT provider, mode, subscription, customer, contact_email, billing, created_at
FROM memberships WHERE provider = ? AND ended_at IS NULL
"""
MEMBERSHIPS = f"{_LIVE_MEMBERSHIPS} ORDER BY id"
MEMBERSHIPS_OF_CUSTOMER = f"{_LIVE_MEMBERSHIPS} AND customer = ? ORDER BY id"
END_MEMBERSHIP = """
UPDATE memberships SET ended_at = ?, ended_why = ?
WHERE provider = ? AND subscription = ? AND ended_at IS NULL RETURNING id
"""
REVOKE_KEYS_OF_MEMBERSHIP = """
UPDATE keys SET revoked_at = ? WHERE membership_id = ? AND revoked_at IS NULL RETURNING id
"""
NEW_ATTEMPT = """
INSERT INTO attempts (kind, address, at) SELECT ?1, ?2, CAST(?3 AS BIGINT)
WHERE (SELECT count(*) FROM attempts WHERE kind = ?1 AND address = ?2 AND at > ?4) < ?5
RETURNING at
"""
FREE_AGAIN = """
SELECT at FROM attempts WHERE kind = ?1 AND address = ?2 ORDER BY at DESC LIMIT 1 OFFSET ?3 - 1
"""
KNOWN_ACCESS_REQUEST = "SELECT 1 FROM access_requests WHERE contact_email = ?"
PUT_ACCESS_REQUEST = """
INSERT INTO access_requests
  (contact_email, agent_name, operator, use_case, expected_volume, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (contact_email) DO UPDATE SET agent_name = excluded.agent_name,
  operator = excluded.operator, use_case = excluded.use_case,
  expected_volume = excluded.expected_volume, updated_at = excluded.updated_at
"""
ACCESS_REQUESTS = """
SELECT contact_email, agent_name, operator, use_case, expected_volume, created_at, updated_at
FROM access_requests ORDER BY created_at, contact_email
"""
PRUNE_USAGE = """
DELETE FROM usage
WHERE last_at < ? AND day < (SELECT max(day) FROM usage AS all_days WHERE key_id = usage.key_id)
RETURNING 1
"""
PRUNE_CLAIMS = "DELETE FROM claims WHERE redeemed_at IS NULL AND expires_at < ? RETURNING 1"
PRUNE_SANDBOX = "DELETE FROM sandbox_sessions WHERE expires_at < ? RETURNING 1"
PRUNE_EVENTS = "DELETE FROM events WHERE handled_at < ? RETURNING 1"
PRUNE_ATTEMPTS = "DELETE FROM attempts WHERE at < ? RETURNING 1"


class Counting(Protocol):
    """How an engine decides and counts calls, as AccessStore.count."""

    async def count(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Decide and count groups of calls; at most MOST_GROUPS of them."""


class SqlAccessStore:
    """An AccessStore on a database engine."""

    def __init__(self, engine: Engine, counting: Counting) -> None:
        self._engine = engine
        self._counting = counting

    async def close(self) -> None:
        """Close every connection; idempotent."""
        await self._engine.close()

    async def move_from(self, source: "SqlAccessStore") -> None:
        """Replace what this store holds by what another one does, in one transaction."""
        from store import moving  # It loads the market's libraries.

        await moving.move_access(source._engine, self._engine)
        await moving.verify(source._engine, self._engine, moving.ACCESS)

    async def create_key(self, key_hash: bytes, label: str, created_at: int) -> int:
        """Store a key of the operator's own and return its id."""
        sql = "INSERT INTO keys (key_hash, label, created_at) VALUES (?, ?, ?) RETURNING id"
        async with self._engine.writing_for_good() as db:
            rows = await db.rows(sql, key_hash, label, created_at)
        return int(rows[0][0])

    async def list_keys(self) -> list[KeyRow]:
        """Return every key, oldest first."""
        async with self._engine.querying() as db:
            return [KeyRow(*row) for row in await db.rows(KEYS)]

    async def revoke_key(self, key_id: int, revoked_at: int) -> bool:
        """Revoke a key for good, the first time counting; False where no such key exists."""
        sql = "UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? RETURNING id"
        async with self._engine.writing_for_good() as db:
            return bool(await db.rows(sql, revoked_at, key_id))

    async def count(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Decide and count groups of calls; at most MOST_GROUPS of them."""
        return await self._counting.count(groups, mode, limit)

    async def create_claim(self, claim: ClaimRow) -> None:
        """Store a checkout."""
        async with self._engine.writing_for_good() as db:
            await db.rows(NEW_CLAIM, *astuple(claim)[:-1])

    async def find_claim(self, token_hash: bytes) -> ClaimRow | None:
        """Return the checkout of a token."""
        async with self._engine.querying() as db:
            rows = await db.rows(CLAIM, token_hash)
        return ClaimRow(*rows[0]) if rows else None

    async def redeem(
        self, claim: ClaimRow, member: MembershipRow, key_hash: bytes, redeemed_at: int
    ) -> bool:
        """Make the one key of a claim, and its membership; False where it was redeemed before."""
        async with self._engine.writing_for_good() as db:
            if not await db.rows(TAKE_CLAIM, redeemed_at, claim.id):
                return False
            made = await db.rows(NEW_MEMBERSHIP, *astuple(member))
            key = (key_hash, claim.agent_name, redeemed_at, member.mode, made[0][0])
            key_id = (await db.rows(NEW_BOUGHT_KEY, *key))[0][0]
            await db.rows("UPDATE claims SET key_id = ? WHERE id = ?", key_id, claim.id)
        return True

    async def memberships(self, provider: str, customer: str | None = None) -> list[MembershipRow]:
        """Return a provider's memberships that have not ended, of one customer or of all."""
        async with self._engine.querying() as db:
            if customer is None:
                rows = await db.rows(MEMBERSHIPS, provider)
            else:
                rows = await db.rows(MEMBERSHIPS_OF_CUSTOMER, provider, customer)
        return [MembershipRow(*row) for row in rows]

    async def end_membership(self, member: MembershipRow, ended_at: int, why: str) -> int:
        """Revoke every live key of a membership for good; return how many."""
        subscription = member.provider, member.subscription
        async with self._engine.writing_for_good() as db:
            ended = await db.rows(END_MEMBERSHIP, ended_at, why, *subscription)
            if not ended:
                return 0
            revoking = REVOKE_KEYS_OF_MEMBERSHIP, ended_at, ended[0][0]
            return len(await db.rows(*revoking))

    async def is_handled(self, event_id: str) -> bool:
        """Tell whether an event of the processor was handled before."""
        async with self._engine.querying() as db:
            return bool(await db.rows("SELECT 1 FROM events WHERE id = ?", event_id))

    async def mark_handled(self, event_id: str, handled_at: int) -> None:
        """Remember that an event was handled; idempotent."""
        sql = "INSERT INTO events (id, handled_at) VALUES (?, ?) ON CONFLICT DO NOTHING"
        async with self._engine.writing_for_good() as db:
            await db.rows(sql, event_id, handled_at)

    async def create_sandbox_session(self, session: SandboxSession) -> None:
        """Open a checkout in the sandbox's books."""
        sql = "INSERT INTO sandbox_sessions VALUES (?, ?, ?, ?, ?, ?, ?)"
        async with self._engine.writing_for_good() as db:
            await db.rows(sql, *astuple(session))

    async def find_sandbox_session(self, session_id: str) -> SandboxSession | None:
        """Return a checkout of the sandbox's books."""
        sql = "SELECT * FROM sandbox_sessions WHERE id = ?"
        async with self._engine.querying() as db:
            rows = await db.rows(sql, session_id)
        return SandboxSession(*rows[0]) if rows else None

    async def settle_sandbox_session(self, session_id: str, status: SandboxStatus) -> None:
        """Pay or cancel a checkout that is open; one that is settled stays as it is."""
        sql = "UPDATE sandbox_sessions SET status = ? WHERE id = ? AND status = 'open'"
        async with self._engine.writing_for_good() as db:
            await db.rows(sql, status, session_id)

    async def attempt(
        self, kind: str, address: str, at: int, limit: int, window_ms: int
    ) -> int | None:
        """Take one of an address's attempts; the time when one is free again if none is left."""
        async with self._engine.writing() as db:
            await db.alone(kind, address)
            if await db.rows(NEW_ATTEMPT, kind, address, at, at - window_ms, limit):
                return None
            newest = await db.rows(FREE_AGAIN, kind, address, limit)
            return int(newest[0][0]) + window_ms

    async def put_access_request(self, request: AccessRequestRow) -> bool:
        """Store a request, or update the one of this address; True where it is new."""
        async with self._engine.writing_for_good() as db:
            await db.alone(request.contact_email)
            known = await db.rows(KNOWN_ACCESS_REQUEST, request.contact_email)
            await db.rows(PUT_ACCESS_REQUEST, *astuple(request))
        return not known

    async def list_access_requests(self) -> list[AccessRequestRow]:
        """Return every request, oldest first."""
        async with self._engine.querying() as db:
            return [AccessRequestRow(*row) for row in await db.rows(ACCESS_REQUESTS)]

    async def notice(self, notice: Notice) -> None:
        """Keep what a serving process saw, in place of the last of this name."""
        sql = (
            "INSERT INTO notices (name, detail, at) VALUES (?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET detail = excluded.detail, at = excluded.at"
        )
        async with self._engine.writing() as db:
            await db.rows(sql, notice.name, notice.detail, notice.at)

    async def notices(self) -> list[Notice]:
        """Return what serving processes saw, by name."""
        async with self._engine.querying() as db:
            rows = await db.rows("SELECT name, detail, at FROM notices ORDER BY name")
        return [Notice(*row) for row in rows]

    async def prune(self, before: Horizons) -> int:
        """Delete what is no longer needed; return how many rows. Each key keeps its last day.

        A transaction a table, so that no call waits for long to be counted.
        """
        pruned = 0
        for sql, time in (
            (PRUNE_USAGE, before.usage),
            (PRUNE_CLAIMS, before.unredeemed),
            (PRUNE_SANDBOX, before.unredeemed),
            (PRUNE_EVENTS, before.events),
            (PRUNE_ATTEMPTS, before.attempts),
        ):
            async with self._engine.writing() as db:
                pruned += len(await db.rows(sql, time))
        return pruned
