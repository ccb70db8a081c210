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
    HeldKey,
    HeldMembership,
    Horizons,
    KeyRow,
    MembershipRow,
    MostKeys,
    Notice,
    SandboxSession,
    SandboxStatus,
    SignInRow,
    mailbox,
)
from store.sql import access_statements as statements
from store.sql.database import Engine


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
        from store.sql import migrate_database as moving  # It loads the market's libraries.

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
            return [KeyRow(*row) for row in await db.rows(statements.KEYS)]

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
            await db.rows(statements.NEW_CLAIM, *astuple(claim)[:-1])

    async def find_claim(self, token_hash: bytes) -> ClaimRow | None:
        """Return the checkout of a token."""
        async with self._engine.querying() as db:
            rows = await db.rows(statements.CLAIM, token_hash)
        return ClaimRow(*rows[0]) if rows else None

    async def redeem(
        self, claim: ClaimRow, member: MembershipRow, key_hash: bytes, redeemed_at: int
    ) -> bool:
        """Make the one key of a claim, and its membership; False where it was redeemed before."""
        async with self._engine.writing_for_good() as db:
            if not await db.rows(statements.TAKE_CLAIM, redeemed_at, claim.id):
                return False
            made = await db.rows(statements.NEW_MEMBERSHIP, *astuple(member))
            if not made:
                return False
            key = (key_hash, claim.agent_name, redeemed_at, member.mode, made[0][0])
            key_id = (await db.rows(statements.NEW_BOUGHT_KEY, *key))[0][0]
            await db.rows("UPDATE claims SET key_id = ? WHERE id = ?", key_id, claim.id)
        return True

    async def claims_of(self, email: str, provider: str, mode: Mode, most: int) -> list[ClaimRow]:
        """Return the newest checkouts of a mailbox with a provider that were not redeemed."""
        of = mailbox(email), provider, mode
        async with self._engine.querying() as db:
            rows = await db.rows(statements.CLAIMS_OF_EMAIL, *of, most)
        return [ClaimRow(*row) for row in rows]

    async def memberships(self, provider: str, customer: str | None = None) -> list[MembershipRow]:
        """Return a provider's memberships that have not ended, of one customer or of all."""
        async with self._engine.querying() as db:
            if customer is None:
                rows = await db.rows(statements.MEMBERSHIPS, provider)
            else:
                rows = await db.rows(statements.MEMBERSHIPS_OF_CUSTOMER, provider, customer)
        return [MembershipRow(*row) for row in rows]

    async def end_membership(self, member: MembershipRow, ended_at: int, why: str) -> int:
        """Revoke every live key of a membership for good; return how many."""
        subscription = member.provider, member.subscription
        async with self._engine.writing_for_good() as db:
            ended = await db.rows(statements.END_MEMBERSHIP, ended_at, why, *subscription)
            if not ended:
                return 0
            # Else a key that is being made would outlive it.
            await db.alone("keys of a membership", str(ended[0][0]))
            revoking = statements.REVOKE_KEYS_OF_MEMBERSHIP, ended_at, ended[0][0]
            return len(await db.rows(*revoking))

    async def memberships_of(self, email: str) -> list[HeldMembership]:
        """Return every membership of a mailbox, in whatever case its address is; oldest first."""
        async with self._engine.querying() as db:
            rows = await db.rows(statements.MEMBERSHIPS_OF_EMAIL, mailbox(email))
        return [HeldMembership(row[0], MembershipRow(*row[3:]), *row[1:3]) for row in rows]

    async def keys_of(self, membership_id: int, day: int) -> list[HeldKey]:
        """Return the keys of a membership, oldest first."""
        async with self._engine.querying() as db:
            rows = await db.rows(statements.KEYS_OF_MEMBERSHIP, day, membership_id)
        return [HeldKey(KeyRow(*row[1:]), row[0]) for row in rows]

    async def create_member_key(
        self, membership_id: int, key_hash: bytes, label: str, created_at: int, most: MostKeys
    ) -> bool:
        """Store a key of a membership; False where that has ended, or has as many as it may."""
        async with self._engine.writing_for_good() as db:
            await db.alone("keys of a membership", str(membership_id))
            key = key_hash, label, created_at, membership_id, *most
            return bool(await db.rows(statements.NEW_MEMBER_KEY, *key))

    async def relabel_key(self, membership_id: int, key_id: int, label: str) -> bool:
        """Give a key of a membership another label; False where there is no such live key."""
        async with self._engine.writing_for_good() as db:
            return bool(await db.rows(statements.RELABEL_KEY, label, key_id, membership_id))

    async def revoke_member_key(self, membership_id: int, key_id: int, revoked_at: int) -> bool:
        """Revoke a key of a membership for good, the first time counting; False for no such key."""
        async with self._engine.writing_for_good() as db:
            return bool(
                await db.rows(statements.REVOKE_MEMBER_KEY, revoked_at, key_id, membership_id)
            )

    async def create_sign_in_link(self, link: SignInRow) -> None:
        """Store a link that was mailed."""
        sql = "INSERT INTO sign_in_links (token_hash, contact_email, expires_at) VALUES (?, ?, ?)"
        async with self._engine.writing_for_good() as db:
            await db.rows(sql, *astuple(link))

    async def sign_in(
        self, link_hash: bytes, session_hash: bytes, at: int, expires_at: int
    ) -> str | None:
        """Use a link up for a session; return whose, None where it was used, is late or unknown."""
        async with self._engine.writing_for_good() as db:
            used = await db.rows(statements.USE_SIGN_IN_LINK, at, link_hash)
            if not used:
                return None
            await db.rows(statements.NEW_SESSION, session_hash, used[0][0], expires_at)
        return str(used[0][0])

    async def find_session(self, token_hash: bytes, at: int) -> SignInRow | None:
        """Return a session that lasts."""
        async with self._engine.querying() as db:
            rows = await db.rows(statements.SESSION, token_hash, at)
        return SignInRow(*rows[0]) if rows else None

    async def end_sessions(self, token_hash: bytes) -> None:
        """End every session of the mailbox that a session is of; idempotent."""
        async with self._engine.writing_for_good() as db:
            await db.rows(statements.END_SESSIONS, token_hash)

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
            if await db.rows(statements.NEW_ATTEMPT, kind, address, at, at - window_ms, limit):
                return None
            newest = await db.rows(statements.FREE_AGAIN, kind, address, limit)
            return int(newest[0][0]) + window_ms

    async def put_access_request(self, request: AccessRequestRow) -> bool:
        """Store a request, or update the one of this address; True where it is new."""
        async with self._engine.writing_for_good() as db:
            await db.alone(request.contact_email)
            known = await db.rows(statements.KNOWN_ACCESS_REQUEST, request.contact_email)
            await db.rows(statements.PUT_ACCESS_REQUEST, *astuple(request))
        return not known

    async def list_access_requests(self) -> list[AccessRequestRow]:
        """Return every request, oldest first."""
        async with self._engine.querying() as db:
            return [AccessRequestRow(*row) for row in await db.rows(statements.ACCESS_REQUESTS)]

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
            (statements.PRUNE_USAGE, before.usage),
            (statements.PRUNE_CLAIMS, before.unredeemed),
            (statements.PRUNE_SANDBOX, before.unredeemed),
            (statements.PRUNE_EVENTS, before.events),
            (statements.PRUNE_ATTEMPTS, before.attempts),
            (statements.PRUNE_SIGN_IN_LINKS, before.sign_ins),
            (statements.PRUNE_SESSIONS, before.sign_ins),
        ):
            async with self._engine.writing() as db:
                pruned += len(await db.rows(sql, time))
        return pruned
