"""The access store, independent of the database engine."""

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple
from functools import partial
from typing import Any, Literal

from store.access_rows import (
    AccessRequestRow,
    AccessTokenRow,
    ApprovedAuthorization,
    AttemptLimit,
    ConnectionRow,
    KeyLimits,
    NewTokens,
    Notice,
    OAuthClient,
    PendingAuthorization,
    RedeemOutcome,
    RefusedAttempt,
    RenewOutcome,
    RetentionCutoffs,
    SignInRow,
)
from store.sql.database import Database, Engine, fetch_value
from store.sql.key_store import INSERT_MEMBER_KEY, INSERT_OPERATOR_KEY, StorePart
from store.sql.operations_figures import AccessOperations
from store.sql.person_data import PersonData
from store.sql.purchase_store import INSERT_CLAIM, PurchaseStore
from store.store_errors import LostStoreError

# Calls and claims are frequent, so only a probe of an idle service causes test writes.
MAX_WRITE_AGE_S = 30.0
RESTORE_HINT = "stop the service and restore a backup"

# A claim with this id is inserted and deleted in one transaction, and these write the newest key
# and membership again, unchanged. So a test write reaches all tables that a purchase writes to.
TEST_CLAIM = ("test write", bytes(32), "", "test", "", "", "monthly", None, 0, 0, None)
TEST_WRITES = (
    "DELETE FROM claims WHERE id = 'test write'",
    "UPDATE keys SET label = label WHERE id = (SELECT max(id) FROM keys)",
    "UPDATE memberships SET billing = billing WHERE id = (SELECT max(id) FROM memberships)",
)


class AccessStore(PurchaseStore):
    """Keys and tokens (only as SHA-256), usage, purchases, throttle attempts and requests.

    `oauth` is the part that stores OAuth clients, requests and connections, and `operations` the
    part that the operations page reads. `people` exports and erases a person's data.
    Times are epoch ms, days are UTC days since 1970. Every method raises StoreError if the store
    fails. Keys, claims and memberships are on the disk when a method returns. Counted calls and
    attempts survive a crash of the process, but on SQLite not a power cut.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.oauth = OAuthStore(engine)
        self.operations = AccessOperations(engine)
        self.people = PersonData(engine)
        self._id: str | None = None

    async def close(self) -> None:
        """Close every connection; idempotent."""
        await self._engine.close()

    async def get_id(self) -> str:
        """Return the random id that this store got when it was created."""
        rows = await self._read("SELECT value FROM store_id")
        if not rows:
            raise LostStoreError(f"{self._engine.name} has lost its rows: {RESTORE_HINT}")
        return str(rows[0]["value"])

    async def check_id(self) -> None:
        """Raise LostStoreError if this is no longer the store that was checked first."""
        found = await self.get_id()
        self._id = self._id or found
        if found != self._id:
            raise LostStoreError(f"{self._engine.name} was replaced while in use: {RESTORE_HINT}")

    async def check_writes(self) -> None:
        """Raise StoreError if the store is lost, or cannot write a count or a claim."""

        async def test_transaction() -> None:
            async with self._engine.begin_write(is_durable=True) as db:
                await db.execute(INSERT_CLAIM, *TEST_CLAIM)
                for statement in TEST_WRITES:
                    await db.execute(statement)

        await self._engine.check_writes(
            {"count": self.test_counts, "transaction": test_transaction},
            MAX_WRITE_AGE_S,
        )

    async def move_from(self, source: "AccessStore") -> None:
        """Replace the content of this store with that of another one, in one transaction."""
        from store.sql import migrate_database as moving  # imports NumPy by way of market_writes

        await moving.move_access(source._engine, self._engine)

    async def create_sign_in_link(self, link: SignInRow) -> None:
        """Store a sign-in link that is about to be mailed or shown."""
        sql = (
            "INSERT INTO sign_in_links (token_hash, contact_email, expires_at, is_owner) "
            "VALUES (?, ?, ?, ?)"
        )
        row = link.token_hash, link.contact_email, link.expires_at, int(link.is_owner)
        await self._write(sql, *row)

    async def sign_in(
        self, link_hash: bytes, session_hash: bytes, at: int, expires_at: int
    ) -> str | None:
        """Exchange a link for a session; return its e-mail, None if used, expired or unknown."""
        async with self._engine.begin_write(is_durable=True) as db:
            used = await db.execute(
                """
UPDATE sign_in_links SET used_at = :at
WHERE token_hash = :token_hash AND used_at IS NULL AND expires_at > :at
RETURNING contact_email, is_owner
""",
                at=at,
                token_hash=link_hash,
            )
            if not used:
                return None
            email = str(used[0]["contact_email"])
            await db.execute(
                "INSERT INTO sessions (token_hash, contact_email, expires_at, is_owner) "
                "VALUES (?, ?, ?, ?)",
                *(session_hash, email, expires_at, int(used[0]["is_owner"])),
            )
        return email

    async def find_session(self, token_hash: bytes, at: int) -> SignInRow | None:
        """Return a session; None if it is unknown or has expired."""
        sql = (
            "SELECT token_hash, contact_email, expires_at, is_owner FROM sessions "
            "WHERE token_hash = ? AND expires_at > ?"
        )

        def build(*, is_owner: int, **session: Any) -> SignInRow:
            return SignInRow(**session, is_owner=bool(is_owner))

        return await self._find(build, sql, token_hash, at)

    async def end_sessions(self, token_hash: bytes) -> None:
        """End every session of the mailbox that owns this session; idempotent."""
        # All of them, because a member can thus end one on a lost device.
        sql = """
DELETE FROM sessions
WHERE lower(contact_email) = (SELECT lower(contact_email) FROM sessions WHERE token_hash = ?)
RETURNING 1
"""
        await self._write(sql, token_hash)

    async def record_attempt(
        self, kind: str, limits: Sequence[AttemptLimit], at: int, window_ms: int
    ) -> RefusedAttempt | None:
        """Record an attempt under every limit and return None; if one is exhausted, record nothing.

        Then return the limit that is free last.
        """
        # Attempts more than a window ahead were dated by a clock that was wrong. They do not count,
        # because they would lock their clients out until that time.
        find_sql = """
SELECT at FROM attempts WHERE kind = ? AND address = ? AND at > ? AND at < ?
ORDER BY at DESC LIMIT 1 OFFSET ? - 1
"""
        insert_sql = "INSERT INTO attempts (kind, address, at) VALUES (?, ?, ?)"
        # Not a durable write: losing attempts in a power cut only lets a client try again sooner.
        async with self._engine.begin_write() as db:
            # One lock for all limits of a kind: the widest of them is the same for every client.
            await db.acquire_named_lock("attempts", kind)
            refusals = [
                RefusedAttempt(limit, int(row["at"]) + window_ms)
                for limit in limits
                for row in await db.execute(
                    find_sql, kind, limit.address, at - window_ms, at + window_ms, limit.attempts
                )
            ]
            if refusals:
                return max(refusals, key=lambda refusal: refusal.free_at)
            for limit in limits:
                await db.execute(insert_sql, kind, limit.address, at)
        return None

    async def put_access_request(
        self, request: AccessRequestRow, max_requests: int
    ) -> Literal["received", "updated", "full"]:
        """Store a request, or update the one of the same address; return which was done.

        A new one is not stored if there are `max_requests` already.
        """
        find_sql = "SELECT 1 FROM access_requests WHERE contact_email = ?"
        # Reads the index up to a position, so it counts no more rows than the limit.
        find_last_sql = """
SELECT 1 FROM access_requests WHERE contact_email > '' ORDER BY contact_email LIMIT 1 OFFSET ?
"""
        async with self._engine.begin_write(is_durable=True) as db:
            await db.acquire_named_lock("access requests")
            is_known = bool(await db.execute(find_sql, request.contact_email))
            if not is_known and await db.execute(find_last_sql, max_requests - 1):
                return "full"
            await db.execute(
                """
INSERT INTO access_requests
  (contact_email, agent_name, operator, use_case, expected_volume, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (contact_email) DO UPDATE SET agent_name = excluded.agent_name,
  operator = excluded.operator, use_case = excluded.use_case,
  expected_volume = excluded.expected_volume, updated_at = excluded.updated_at
""",
                *astuple(request),
            )
        return "updated" if is_known else "received"

    async def list_access_requests(self) -> list[AccessRequestRow]:
        """Return every request, oldest first."""
        sql = """
SELECT contact_email, agent_name, operator, use_case, expected_volume, created_at, updated_at
FROM access_requests ORDER BY created_at, contact_email
"""
        return await self._list(AccessRequestRow, sql)

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
        return await self._list(Notice, "SELECT name, detail, at FROM notices ORDER BY name")

    async def watch(self, holder: str, ticker: str, at: int, limit: int) -> bool:
        """Add an asset to a watchlist; False if `limit` others are there. Idempotent."""
        count_sql = "SELECT count(*) FROM watchlist WHERE holder = ? AND ticker <> ?"
        insert_sql = (
            "INSERT INTO watchlist (holder, ticker, added_at) VALUES (?, ?, ?) "
            "ON CONFLICT DO NOTHING"
        )
        async with self._engine.begin_write(is_durable=True) as db:
            await db.acquire_named_lock("watchlist", holder)
            if await fetch_value(db, count_sql, holder, ticker) >= limit:
                return False
            await db.execute(insert_sql, holder, ticker, at)
        return True

    async def unwatch(self, holder: str, ticker: str) -> None:
        """Remove an asset from a watchlist; idempotent."""
        await self._write("DELETE FROM watchlist WHERE holder = ? AND ticker = ?", holder, ticker)

    async def list_watched(self, holder: str) -> tuple[str, ...]:
        """Return the tickers of a watchlist, sorted."""
        sql = "SELECT ticker FROM watchlist WHERE holder = ? ORDER BY ticker"
        return tuple(str(row["ticker"]) for row in await self._read(sql, holder))

    async def prune(self, cutoffs: RetentionCutoffs) -> int:
        """Delete rows older than the cutoffs; return how many. Each key keeps its newest day.

        Unredeemed claims stay, because only the payment processor knows which of them are paid.
        """
        # One transaction per table: a counted call waits for the writer that holds the file.
        pruned = 0
        for sql, cutoff in (
            # Keeps the newest day of each key, which `last_used_at` is read from.
            (
                "DELETE FROM usage WHERE last_at < ? "
                "AND day < (SELECT max(day) FROM usage AS all_days WHERE key_id = usage.key_id) "
                "RETURNING 1",
                cutoffs.usage,
            ),
            # A session whose claim is not redeemed is kept, because it says whether the claim was
            # paid.
            (
                "DELETE FROM sandbox_sessions WHERE expires_at < ? AND NOT EXISTS "
                "(SELECT 1 FROM claims WHERE id = claim_id AND redeemed_at IS NULL) RETURNING 1",
                cutoffs.unredeemed_claims,
            ),
            ("DELETE FROM events WHERE handled_at < ? RETURNING 1", cutoffs.events),
            ("DELETE FROM attempts WHERE at < ? RETURNING 1", cutoffs.attempts),
            (
                "DELETE FROM access_requests WHERE updated_at < ? RETURNING 1",
                cutoffs.access_requests,
            ),
            ("DELETE FROM sign_in_links WHERE expires_at < ? RETURNING 1", cutoffs.sign_ins),
            ("DELETE FROM sessions WHERE expires_at < ? RETURNING 1", cutoffs.sign_ins),
            ("DELETE FROM calls WHERE at < ? RETURNING 1", cutoffs.calls),
            (
                "DELETE FROM tool_usage WHERE day < CAST(? AS BIGINT) / 86400000 RETURNING 1",
                cutoffs.calls,
            ),
            (PRUNE_REQUESTS, cutoffs.attempts),
            ("DELETE FROM oauth_access_tokens WHERE expires_at < ? RETURNING 1", cutoffs.sign_ins),
            # Before the clients, which stay while one of their connections is live.
            (
                "DELETE FROM oauth_grants WHERE EXISTS (SELECT 1 FROM keys WHERE id = key_id "
                "AND (revoked_at IS NOT NULL OR expires_at < ?)) RETURNING 1",
                cutoffs.sign_ins,
            ),
            (PRUNE_CLIENTS, cutoffs.oauth_clients),
        ):
            async with self._engine.begin_write() as db:
                pruned += len(await db.execute(sql, cutoff))
        return pruned


INSERT_GRANT = """
INSERT INTO oauth_grants (grant_hash, key_id, issued_at, reusable_until) VALUES (?, ?, ?, ?)
"""
# The later end excludes times that a clock stored that was wrong.
_USABLE = "(reusable_until IS NULL OR reusable_until BETWEEN :at AND :until)"
PRUNE_REQUESTS = "DELETE FROM oauth_requests WHERE created_at < ? RETURNING 1"
# A client with a live connection stays: it uses its id at each refresh. The grants of connections
# that have ended are pruned before.
PRUNE_CLIENTS = """
DELETE FROM oauth_clients WHERE used_at < ?
  AND NOT EXISTS (SELECT 1 FROM oauth_connections JOIN oauth_grants USING (key_id)
                    JOIN keys ON keys.id = key_id
                  WHERE oauth_connections.client_id = oauth_clients.client_id
                    AND revoked_at IS NULL)
RETURNING 1
"""


class OAuthStore(StorePart):
    """The part of `AccessStore` that stores OAuth; every secret only as SHA-256."""

    async def add_client(self, client: OAuthClient, max_clients: int, unused_since: int) -> bool:
        """Store a client, or what its document says now; False if there are `max_clients` already.

        If so, delete those without a live connection that were last used before `unused_since`.
        """
        # The limit is part of the INSERT. It reads the index up to a position, so it counts no more
        # rows than the limit.
        sql = """
INSERT INTO oauth_clients (client_id, name, redirect_uris, created_at, used_at)
SELECT :client_id, :name, :redirect_uris, CAST(:created_at AS BIGINT), CAST(:created_at AS BIGINT)
WHERE NOT EXISTS (SELECT 1 FROM oauth_clients WHERE used_at > 0 ORDER BY used_at
                  LIMIT 1 OFFSET :max_clients - 1)
ON CONFLICT (client_id) DO UPDATE SET name = excluded.name,
  redirect_uris = excluded.redirect_uris, created_at = excluded.created_at
RETURNING 1
"""
        uris = json.dumps(client.redirect_uris)
        values = asdict(client) | {"redirect_uris": uris, "max_clients": max_clients}
        async with self._engine.begin_write(is_durable=True) as db:
            await db.acquire_named_lock("oauth clients")
            if await db.execute(sql, **values):
                return True
            await db.execute(PRUNE_CLIENTS, unused_since)
            return bool(await db.execute(sql, **values))

    async def find_client(self, client_id: str) -> OAuthClient | None:
        """Return a client that registered itself, or whose document was read before, or None."""
        sql = (
            "SELECT client_id, name, redirect_uris, created_at FROM oauth_clients "
            "WHERE client_id = ?"
        )

        def build(*, redirect_uris: str, **client: Any) -> OAuthClient:
            return OAuthClient(redirect_uris=tuple(json.loads(redirect_uris)), **client)

        return await self._find(build, sql, client_id)

    async def add_request(
        self, request: PendingAuthorization, id_hash: bytes, expired_before: int
    ) -> None:
        """Store a request that waits for consent, and delete those created before a time."""
        async with self._engine.begin_write() as db:
            await db.execute(PRUNE_REQUESTS, expired_before)
            used_sql = "UPDATE oauth_clients SET used_at = ? WHERE client_id = ?"
            await db.execute(used_sql, request.created_at, request.client_id)
            await db.execute(
                """
INSERT INTO oauth_requests
  (id_hash, client_id, client_name, redirect_uri, state, resource, code_challenge, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
""",
                *(id_hash, request.client_id, request.client_name, request.redirect_uri),
                *(request.state, request.resource, request.code_challenge, request.created_at),
            )

    async def find_request(
        self, request_id: str, id_hash: bytes, after: int
    ) -> PendingAuthorization | None:
        """Return a pending request created after a time, or None; `request_id` is its clear id."""
        sql = """
SELECT client_id, client_name, redirect_uri, state, resource, code_challenge, created_at
FROM oauth_requests WHERE id_hash = ? AND created_at > ? AND code_hash IS NULL
"""
        return await self._find(partial(PendingAuthorization, id=request_id), sql, id_hash, after)

    # Decisions are conditional on `code_hash IS NULL`, so that one of several at once takes effect.

    async def approve_request(
        self, id_hash: bytes, code_hash: bytes, at: int, membership_id: int | None, after: int
    ) -> bool:
        """Give a pending request, created after a time, its code; False if it is not pending."""
        sql = """
UPDATE oauth_requests SET code_hash = ?, approved_at = ?, membership_id = ?
WHERE id_hash = ? AND created_at > ? AND code_hash IS NULL RETURNING 1
"""
        return bool(await self._write(sql, code_hash, at, membership_id, id_hash, after))

    async def deny_request(self, id_hash: bytes, after: int) -> bool:
        """Delete a pending request, created after a time; False if it is not pending."""
        sql = """
DELETE FROM oauth_requests WHERE id_hash = ? AND created_at > ? AND code_hash IS NULL RETURNING 1
"""
        return bool(await self._write(sql, id_hash, after))

    async def find_code(self, code_hash: bytes) -> ApprovedAuthorization | None:
        """Return the request of a code that was not exchanged, however old, or None."""
        columns = ", ".join(ApprovedAuthorization._fields)
        sql = f"SELECT {columns} FROM oauth_requests WHERE code_hash = ?"
        return await self._find(ApprovedAuthorization, sql, code_hash)

    async def redeem_code(
        self,
        code_hash: bytes,
        request: ApprovedAuthorization,
        key_hash: bytes,
        family_hash: bytes,
        repeat: tuple[bytes, int],
        tokens: NewTokens,
        at: int,
        limits: KeyLimits,
    ) -> RedeemOutcome:
        """Exchange a code for a connection: a key of the membership, and its first tokens.

        `repeat` is a grant with which `renew_tokens` repeats the exchange, and until when. Return
        `spent` if the code was exchanged before, `full` if the membership has ended or reached a
        limit on keys. The code is spent in each case.
        """
        async with self._engine.begin_write(is_durable=True) as db:
            take_sql = "DELETE FROM oauth_requests WHERE code_hash = ? RETURNING 1"
            if not await db.execute(take_sql, code_hash):
                return "spent"
            if request.membership_id is None:
                key = key_hash, request.client_name, at, tokens.refresh_expires_at
                rows = await db.execute(INSERT_OPERATOR_KEY, *key)
            else:
                await db.acquire_named_lock("keys of a membership", str(request.membership_id))
                rows = await db.execute(
                    INSERT_MEMBER_KEY,
                    key_hash=key_hash,
                    label=request.client_name,
                    created_at=at,
                    membership_id=request.membership_id,
                    expires_at=tokens.refresh_expires_at,
                    **limits._asdict(),
                )
            if not rows:
                return "full"
            key_id = int(rows[0]["id"])
            await db.execute(
                "INSERT INTO oauth_connections (key_id, client_id, resource, family_hash) "
                "VALUES (?, ?, ?, ?)",
                *(key_id, request.client_id, request.resource, family_hash),
            )
            grant_hash, reusable_until = repeat
            await db.execute(INSERT_GRANT, grant_hash, key_id, at, reusable_until)
            await _insert_tokens(db, key_id, tokens, at)
        return "connected"

    async def find_connection(self, family_hash: bytes) -> ConnectionRow | None:
        """Return the connection of a family of tokens, which may have ended, or None."""
        sql = "SELECT key_id, client_id, resource FROM oauth_connections WHERE family_hash = ?"
        return await self._find(ConnectionRow, sql, family_hash)

    async def renew_tokens(
        self, key_id: int, grant_hash: bytes, tokens: NewTokens, at: int, until: int, max_live: int
    ) -> RenewOutcome:
        """Add tokens to a live connection for a grant, which can be used again `until` a time.

        Return `ended` if the key of the connection does not work, and `busy` if the connection has
        `max_live` live access tokens. Return `replayed` for a grant that was used longer ago or is
        not known; the key is then revoked.
        """
        extend_sql = (
            "UPDATE keys SET expires_at = ? "
            "WHERE id = ? AND revoked_at IS NULL AND expires_at > ? RETURNING 1"
        )
        expire_sql = "DELETE FROM oauth_access_tokens WHERE key_id = ? AND expires_at <= ?"
        count_sql = "SELECT count(*) FROM oauth_access_tokens WHERE key_id = ?"
        use_sql = f"""
UPDATE oauth_grants SET reusable_until = coalesce(reusable_until, :until)
WHERE grant_hash = :grant_hash AND key_id = :key_id AND {_USABLE} RETURNING 1
"""
        trim_sql = f"""
DELETE FROM oauth_grants WHERE key_id = :key_id AND grant_hash NOT IN (
  SELECT grant_hash FROM oauth_grants WHERE key_id = :key_id AND {_USABLE}
  ORDER BY issued_at DESC LIMIT :kept)
"""
        async with self._engine.begin_write(is_durable=True) as db:
            await db.acquire_named_lock("tokens of a connection", str(key_id))
            if not await db.execute(extend_sql, tokens.refresh_expires_at, key_id, at):
                return "ended"
            await db.execute(expire_sql, key_id, at)
            if await fetch_value(db, count_sql, key_id) >= max_live:
                return "busy"
            times = {"key_id": key_id, "at": at, "until": until}
            if not await db.execute(use_sql, grant_hash=grant_hash, **times):
                await db.execute("UPDATE keys SET revoked_at = ? WHERE id = ?", at, key_id)
                return "replayed"
            # Each use makes an access token, so these are all that can still be used again, and as
            # many that were not used.
            await db.execute(trim_sql, kept=2 * max_live, **times)
            await _insert_tokens(db, key_id, tokens, at)
        return "renewed"

    async def find_access_token(self, token_hash: bytes) -> AccessTokenRow | None:
        """Return an access token, which may have expired, or None."""
        sql = """
SELECT key_id, key_hash, client_id, resource, tokens.expires_at AS expires_at
FROM oauth_access_tokens AS tokens JOIN oauth_connections USING (key_id)
  JOIN keys ON keys.id = key_id
WHERE token_hash = ?
"""
        return await self._find(AccessTokenRow, sql, token_hash)

    async def is_key_live(self, key_hash: bytes, at: int) -> bool:
        """Return whether a key exists and is neither revoked nor expired."""
        sql = (
            "SELECT 1 FROM keys WHERE key_hash = ? AND revoked_at IS NULL "
            "AND (expires_at IS NULL OR expires_at > ?)"
        )
        return bool(await self._read(sql, key_hash, at))


async def _insert_tokens(db: Database, key_id: int, tokens: NewTokens, at: int) -> None:
    await db.execute(INSERT_GRANT, tokens.refresh_hash, key_id, at, None)
    sql = "INSERT INTO oauth_access_tokens (token_hash, key_id, expires_at) VALUES (?, ?, ?)"
    await db.execute(sql, tokens.access_hash, key_id, tokens.access_expires_at)
