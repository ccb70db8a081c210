"""The access store, independent of the database engine."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, Literal

from schemas.vocabulary import DAY_MS, Mode
from store.access_rows import (
    AccessRequestRow,
    AttemptLimit,
    CallGroup,
    CountedGroup,
    DayUsage,
    KeyLimits,
    KeyRow,
    LoggedCall,
    MemberKey,
    Notice,
    RefusedAttempt,
    RetentionCutoffs,
    SignInRow,
    ToolUsage,
)
from store.errors import LostStoreError
from store.sql import access_statements as statements
from store.sql.database import Engine, fetch_value
from store.sql.oauth_store import (
    PRUNE_ACCESS_TOKENS,
    PRUNE_CLIENTS,
    PRUNE_GRANTS,
    PRUNE_REQUESTS,
    OAuthStore,
)
from store.sql.operations import AccessOperations
from store.sql.purchase_store import PurchaseStore
from store.sql.usage import UsageCounter
from store.sql.watchlist_store import WatchlistStore
from store.write_health import TestWrite, WriteKind

# Calls and claims are frequent, so only a probe of an idle service causes test writes.
MAX_WRITE_AGE_S = 30.0
RESTORE_HINT = "stop the service and restore a backup"

NO_LIMIT = 2**62


class AccessStore(PurchaseStore):
    """Keys and tokens (only as SHA-256), usage, purchases, throttle attempts and requests.

    `oauth` is the part that stores OAuth clients, requests and connections, `watchlists` the part
    of watchlists, and `operations` the part that the operations page reads.
    Times are epoch ms, days are UTC days since 1970. Every method raises StoreError if the store
    fails. Keys, claims and memberships are on the disk when a method returns. Counted calls and
    attempts survive a crash of the process, but on SQLite not a power cut.
    """

    def __init__(self, engine: Engine, usage_counter: UsageCounter) -> None:
        super().__init__(engine)
        self.oauth = OAuthStore(engine)
        self.watchlists = WatchlistStore(engine)
        self.operations = AccessOperations(engine)
        self._usage_counter = usage_counter
        self._id: str | None = None

    async def close(self) -> None:
        """Close every connection; idempotent."""
        await self._engine.close()

    async def get_id(self) -> str:
        """Return the random id that this store got when it was created."""
        async with self._engine.acquire_connection() as db:
            found: str | None = await fetch_value(db, "SELECT value FROM store_id")
        if found is None:
            raise LostStoreError(f"{self._engine.name} has lost its rows: {RESTORE_HINT}")
        return found

    async def check_id(self) -> None:
        """Raise LostStoreError if this is no longer the store that was checked first."""
        found = await self.get_id()
        self._id = self._id or found
        if found != self._id:
            raise LostStoreError(f"{self._engine.name} was replaced while in use: {RESTORE_HINT}")

    async def check_writes(self) -> None:
        """Raise StoreError if the store is lost, or cannot write a count or a claim."""
        tests: dict[WriteKind, TestWrite] = {
            "count": self._usage_counter.test_write,
            "transaction": self._test_write,
        }
        await self._engine.check_writes(tests, MAX_WRITE_AGE_S)

    async def move_from(self, source: "AccessStore") -> None:
        """Replace the content of this store with that of another one, in one transaction."""
        from store.sql import migrate_database as moving  # imports NumPy by way of market_writes

        await moving.move_access(source._engine, self._engine)

    async def create_key(
        self, key_hash: bytes, label: str, created_at: int, expires_at: int | None = None
    ) -> int:
        """Store a key made by the operator and return its id."""
        key = key_hash, label, created_at, expires_at
        async with self._engine.begin_durable_write() as db:
            rows = await db.execute(statements.INSERT_OPERATOR_KEY, *key)
        return int(rows[0]["id"])

    async def rotate_key(
        self,
        key_id: int,
        key_hash: bytes,
        at: int,
        works_until: int,
        limits: KeyLimits | None = None,
    ) -> int | None:
        """Store the successor of a working key, which then works until `works_until`.

        Return the id of the successor, or None if the key does not work, already has a successor,
        or its membership has reached `max_rotated`. The successor has the label, the lifetime and
        today's count of the key. A key that this one replaced ends at once.
        """
        bounds = limits or KeyLimits(NO_LIMIT, NO_LIMIT, at, NO_LIMIT)
        membership_sql = "SELECT membership_id FROM keys WHERE id = ?"
        async with self._engine.begin_durable_write() as db:
            membership_id = await fetch_value(db, membership_sql, key_id)
            await db.acquire_named_lock("keys of a membership", str(membership_id))
            successor = {"key_hash": key_hash, "at": at, "key_id": key_id, **bounds._asdict()}
            inserted = await db.execute_named(statements.INSERT_SUCCESSOR, successor)
            if not inserted:
                return None
            successor_id = int(inserted[0]["id"])
            carried = {"successor_id": successor_id, "day": at // DAY_MS, "key_id": key_id}
            await db.execute_named(statements.CARRY_USAGE_OVER, carried)
            await db.execute_named(statements.EXPIRE_PREDECESSOR, {"at": at, "key_id": key_id})
            await db.execute_named(statements.EXPIRE_KEY, {"at": works_until, "key_id": key_id})
        return successor_id

    async def list_keys(self) -> list[KeyRow]:
        """Return every key, oldest first."""
        async with self._engine.acquire_connection() as db:
            return [KeyRow(**row) for row in await db.execute(statements.LIST_KEYS)]

    async def revoke_key(self, key_id: int, revoked_at: int) -> bool:
        """Revoke a key for good; a repeated call keeps the first time. False for an unknown key."""
        sql = "UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? RETURNING id"
        async with self._engine.begin_durable_write() as db:
            return bool(await db.execute(sql, revoked_at, key_id))

    async def count_calls(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Admit and count groups of calls; see UsageCounter."""
        return await self._usage_counter.count_calls(groups, mode, limit)

    async def list_member_keys(self, membership_id: int, day: int) -> list[MemberKey]:
        """Return the keys of a membership with their usage on a UTC day, oldest first."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(statements.LIST_MEMBER_KEYS, day, membership_id)
        return [_parse_member_key(**row) for row in rows]

    async def create_member_key(
        self,
        membership_id: int,
        key_hash: bytes,
        label: str,
        created_at: int,
        limits: KeyLimits,
        expires_at: int | None = None,
    ) -> bool:
        """Store a key of a membership; False if that has ended or reached a limit."""
        async with self._engine.begin_durable_write() as db:
            await db.acquire_named_lock("keys of a membership", str(membership_id))
            key = {
                "key_hash": key_hash,
                "label": label,
                "created_at": created_at,
                "membership_id": membership_id,
                "expires_at": expires_at,
                **limits._asdict(),
            }
            return bool(await db.execute_named(statements.INSERT_MEMBER_KEY, key))

    async def relabel_key(self, membership_id: int, key_id: int, label: str) -> bool:
        """Rename a live key of a membership; False if there is no such live key."""
        async with self._engine.begin_durable_write() as db:
            return bool(await db.execute(statements.RELABEL_KEY, label, key_id, membership_id))

    async def revoke_member_key(self, membership_id: int, key_id: int, revoked_at: int) -> bool:
        """Revoke a key of a membership for good; False if there is no such key."""
        async with self._engine.begin_durable_write() as db:
            return bool(
                await db.execute(statements.REVOKE_MEMBER_KEY, revoked_at, key_id, membership_id)
            )

    async def find_key_id(self, key_hash: bytes) -> int | None:
        """Return the id of a key, live or not, or None if it is unknown."""
        async with self._engine.acquire_connection() as db:
            found = await fetch_value(db, "SELECT id FROM keys WHERE key_hash = ?", key_hash)
        return None if found is None else int(found)

    async def add_calls(self, calls_by_key: Mapping[int, Sequence[LoggedCall]], kept: int) -> None:
        """Store calls of keys, oldest first, and delete all but the newest `kept` of each key.

        If this fails midway, some of the calls may have been stored.
        """
        rows = [(key_id, *call) for key_id, calls in calls_by_key.items() for call in calls]
        # Not one transaction: it would hold a SQLite file, for which counted calls wait, through
        # several turns of the event loop.
        async with self._engine.acquire_writer() as db:
            await db.insert("calls", f"key_id, {', '.join(LoggedCall._fields)}", rows)
            for key_id in calls_by_key:
                await db.execute_named(statements.TRIM_CALLS, {"key_id": key_id, "kept": kept})

    async def list_calls(self, key_id: int, limit: int) -> list[LoggedCall]:
        """Return the newest stored calls of a key, newest first."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(statements.LIST_CALLS, key_id, limit)
        return [LoggedCall(**row) for row in rows]

    async def add_tool_usage(self, rows: Sequence[ToolUsage]) -> None:
        """Add calls to the counts of keys, days and tools: all of them, or none if this fails.

        No two rows have the same key, day and tool.
        """
        # In one order for every process, so that two of them cannot deadlock on PostgreSQL.
        values = [value for row in sorted(rows) for value in row]
        sql = statements.ADD_TOOL_USAGE.format(rows=", ".join(["(?, ?, ?, ?)"] * len(rows)))
        async with self._engine.acquire_writer() as db:
            await db.execute(sql, *values)

    async def list_tool_usage(self, membership_id: int, since_day: int) -> list[DayUsage]:
        """Return the calls of a membership's keys by key, day and tool, in any order."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(statements.LIST_TOOL_USAGE, membership_id, since_day)
        return [DayUsage(**row) for row in rows]

    async def create_sign_in_link(self, link: SignInRow) -> None:
        """Store a sign-in link that is about to be mailed or shown."""
        row = link.token_hash, link.contact_email, link.expires_at, int(link.is_owner)
        async with self._engine.begin_durable_write() as db:
            await db.execute(statements.INSERT_SIGN_IN_LINK, *row)

    async def sign_in(
        self, link_hash: bytes, session_hash: bytes, at: int, expires_at: int
    ) -> str | None:
        """Exchange a link for a session; return its e-mail, None if used, expired or unknown."""
        async with self._engine.begin_durable_write() as db:
            link = {"at": at, "token_hash": link_hash}
            used = await db.execute_named(statements.USE_SIGN_IN_LINK, link)
            if not used:
                return None
            email, is_owner = str(used[0]["contact_email"]), int(used[0]["is_owner"])
            session = session_hash, email, expires_at, is_owner
            await db.execute(statements.INSERT_SESSION, *session)
        return email

    async def find_session(self, token_hash: bytes, at: int) -> SignInRow | None:
        """Return a session; None if it is unknown or has expired."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute_named(
                statements.FIND_SESSION, {"token_hash": token_hash, "at": at}
            )
        if not rows:
            return None
        session = SignInRow(**rows[0])
        return replace(session, is_owner=bool(session.is_owner))

    async def end_sessions(self, token_hash: bytes) -> None:
        """End every session of the mailbox that owns this session; idempotent."""
        async with self._engine.begin_durable_write() as db:
            await db.execute(statements.END_SESSIONS, token_hash)

    async def record_attempt(
        self, kind: str, limits: Sequence[AttemptLimit], at: int, window_ms: int
    ) -> RefusedAttempt | None:
        """Record an attempt under every limit and return None; if one is exhausted, record nothing.

        Then return the limit that is free last.
        """
        # Not a durable write: losing attempts in a power cut only lets a client try again sooner.
        async with self._engine.begin_write() as db:
            # One lock for all limits of a kind: the widest of them is the same for every client.
            await db.acquire_named_lock("attempts", kind)
            refusals = [
                RefusedAttempt(limit, int(row["at"]) + window_ms)
                for limit in limits
                for row in await db.execute(
                    statements.FIND_BLOCKING_ATTEMPT,
                    *(kind, limit.address, at - window_ms, at + window_ms, limit.attempts),
                )
            ]
            if refusals:
                return max(refusals, key=lambda refusal: refusal.free_at)
            for limit in limits:
                await db.execute(statements.INSERT_ATTEMPT, kind, limit.address, at)
        return None

    async def put_access_request(
        self, request: AccessRequestRow, max_requests: int
    ) -> Literal["received", "updated", "full"]:
        """Store a request, or update the one of the same address; return which was done.

        A new one is not stored if there are `max_requests` already.
        """
        async with self._engine.begin_durable_write() as db:
            await db.acquire_named_lock("access requests")
            if await db.execute(statements.FIND_ACCESS_REQUEST, request.contact_email):
                result: Literal["received", "updated"] = "updated"
            elif await db.execute(statements.FIND_ACCESS_REQUEST_AT, max_requests - 1):
                return "full"
            else:
                result = "received"
            await db.execute(statements.PUT_ACCESS_REQUEST, *astuple(request))
        return result

    async def list_access_requests(self) -> list[AccessRequestRow]:
        """Return every request, oldest first."""
        async with self._engine.acquire_connection() as db:
            return [
                AccessRequestRow(**row) for row in await db.execute(statements.LIST_ACCESS_REQUESTS)
            ]

    async def put_notice(self, notice: Notice) -> None:
        """Store a notice, replacing the previous one of the same name."""
        sql = (
            "INSERT INTO notices (name, detail, at) VALUES (?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET detail = excluded.detail, at = excluded.at"
        )
        async with self._engine.begin_write() as db:
            await db.execute(sql, notice.name, notice.detail, notice.at)

    async def list_notices(self) -> list[Notice]:
        """Return the latest notice of each name, sorted by name."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute("SELECT name, detail, at FROM notices ORDER BY name")
        return [Notice(**row) for row in rows]

    async def prune(self, cutoffs: RetentionCutoffs) -> int:
        """Delete rows older than the cutoffs; return how many. Each key keeps its newest day.

        Unredeemed claims stay, because only the payment processor knows which of them are paid.
        Old copies of the database go too.
        """
        # One transaction per table: a counted call waits for the writer that holds the file.
        pruned = 0
        await self._engine.delete_old_copies()
        for sql, cutoff in (
            (statements.PRUNE_USAGE, cutoffs.usage),
            (statements.PRUNE_SANDBOX, cutoffs.unredeemed_claims),
            (statements.PRUNE_EVENTS, cutoffs.events),
            (statements.PRUNE_ATTEMPTS, cutoffs.attempts),
            (statements.PRUNE_ACCESS_REQUESTS, cutoffs.access_requests),
            (statements.PRUNE_SIGN_IN_LINKS, cutoffs.sign_ins),
            (statements.PRUNE_SESSIONS, cutoffs.sign_ins),
            (statements.PRUNE_CALLS, cutoffs.calls),
            (statements.PRUNE_TOOL_USAGE, cutoffs.calls),
            (PRUNE_REQUESTS, cutoffs.attempts),
            (PRUNE_ACCESS_TOKENS, cutoffs.sign_ins),
            (PRUNE_GRANTS, cutoffs.sign_ins),
            (PRUNE_CLIENTS, cutoffs.oauth_clients),
        ):
            async with self._engine.begin_write() as db:
                pruned += len(await db.execute(sql, cutoff))
        return pruned

    async def _test_write(self) -> None:
        """Commit a write to the tables of a claim that leaves no trace."""
        async with self._engine.begin_durable_write() as db:
            await db.execute(statements.INSERT_CLAIM, *statements.TEST_CLAIM)
            for statement in statements.TEST_WRITES:
                await db.execute(statement)


def _parse_member_key(*, used: int, **key: Any) -> MemberKey:
    return MemberKey(KeyRow(**key), used)
