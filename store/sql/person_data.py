"""The rows of the access store about one person: read for an export, and erased.

Of purchases, the plan, its times and the processor's ids stay, because they are accounts.
"""

from typing import Any

from store.access_rows import normalize_email
from store.sql.database import Lane
from store.sql.key_store import StorePart

_MAIL = "lower(contact_email) = :mailbox"
_PLANS = f"(SELECT id FROM memberships WHERE {_MAIL})"
_OF_KEYS = f"key_id IN (SELECT id FROM keys WHERE membership_id IN {_PLANS})"
# A reservation of a mail is kept for a mailbox, or for a mailbox and a client.
_ATTEMPTS = (
    "kind = 'sign-in-mail' AND (address = :mailbox "
    "OR substr(address, 1, CAST(:prefix_chars AS INTEGER)) = :prefix)"
)
# No secret is exported, not even as a hash.
EXPORTS = {
    "plans": "SELECT id, provider, mode, subscription, customer, contact_email, billing, "
    f"created_at, ended_at, ended_why FROM memberships WHERE {_MAIL} ORDER BY id",
    "keys": "SELECT id, membership_id, label, created_at, revoked_at, expires_at, replaces "
    f"FROM keys WHERE membership_id IN {_PLANS} ORDER BY id",
    "connections": f"SELECT key_id, client_id, resource FROM oauth_connections WHERE {_OF_KEYS}",
    "usage": f"SELECT key_id, day, used, last_at FROM usage WHERE {_OF_KEYS}",
    "tool_usage": f"SELECT key_id, day, tool, used FROM tool_usage WHERE {_OF_KEYS}",
    "calls": "SELECT key_id, at, request_id, tool, transport, outcome, status FROM calls "
    f"WHERE {_OF_KEYS}",
    "checkouts": "SELECT id, provider, mode, session, contact_email, billing, agent_name, "
    f"created_at, expires_at, redeemed_at FROM claims WHERE {_MAIL}",
    "sandbox_checkouts": f"SELECT id, amount_usd, status, expires_at FROM sandbox_sessions "
    f"WHERE {_MAIL}",
    "access_requests": "SELECT contact_email, agent_name, operator, use_case, expected_volume, "
    f"created_at, updated_at FROM access_requests WHERE {_MAIL}",
    "sign_in_links": f"SELECT expires_at, used_at FROM sign_in_links WHERE {_MAIL}",
    "sessions": f"SELECT expires_at FROM sessions WHERE {_MAIL}",
    "watchlist": "SELECT ticker, added_at FROM watchlist WHERE holder = :mailbox",
    "attempts": f"SELECT address, at FROM attempts WHERE {_ATTEMPTS}",
}
# In the order of their references: what names a key before the keys, keys before plans.
ERASURES = (
    f"DELETE FROM oauth_access_tokens WHERE {_OF_KEYS} RETURNING 1",
    f"DELETE FROM oauth_grants WHERE {_OF_KEYS} RETURNING 1",
    f"DELETE FROM oauth_connections WHERE {_OF_KEYS} RETURNING 1",
    f"DELETE FROM oauth_requests WHERE membership_id IN {_PLANS} RETURNING 1",
    f"DELETE FROM usage WHERE {_OF_KEYS} RETURNING 1",
    f"DELETE FROM tool_usage WHERE {_OF_KEYS} RETURNING 1",
    f"DELETE FROM calls WHERE {_OF_KEYS} RETURNING 1",
    # A payer may have typed another's address, so what was paid can still be claimed by its token.
    "UPDATE claims SET contact_email = '', agent_name = NULL, checkout_url = NULL "
    f"WHERE {_MAIL} RETURNING 1",
    f"UPDATE sandbox_sessions SET contact_email = '' WHERE {_MAIL} RETURNING 1",
    f"DELETE FROM access_requests WHERE {_MAIL} RETURNING 1",
    f"DELETE FROM sign_in_links WHERE {_MAIL} RETURNING 1",
    f"DELETE FROM sessions WHERE {_MAIL} RETURNING 1",
    "DELETE FROM watchlist WHERE holder = :mailbox RETURNING 1",
    f"DELETE FROM attempts WHERE {_ATTEMPTS} RETURNING 1",
    "UPDATE keys SET label = NULL, revoked_at = coalesce(revoked_at, CAST(:at AS BIGINT)) "
    f"WHERE membership_id IN {_PLANS} RETURNING 1",
    "UPDATE memberships SET contact_email = '', ended_why = 'the data were erased', "
    "ended_at = coalesce(ended_at, CAST(:at AS BIGINT)), "
    f"closed_at = coalesce(closed_at, CAST(:at AS BIGINT)) WHERE {_MAIL} RETURNING 1",
)


class PersonData(StorePart):
    """The part of `AccessStore` that reads and erases what belongs to a mailbox."""

    async def export(self, email: str) -> dict[str, list[dict[str, Any]]]:
        """Return the rows about a mailbox by kind; times are epoch ms, days as in the store."""
        values = _build_values(email)
        async with self._engine.begin_read(Lane.BATCH) as db:
            return {
                kind: [dict(row) for row in await db.execute(sql, **values)]
                for kind, sql in EXPORTS.items()
            }

    async def erase(self, email: str, at: int) -> int:
        """Erase a mailbox in one transaction; return how many rows that deleted or changed."""
        values = _build_values(email) | {"at": at}
        async with self._engine.begin_write(is_durable=True) as db:
            return sum([len(await db.execute(sql, **values)) for sql in ERASURES])


def _build_values(email: str) -> dict[str, object]:
    mailbox = normalize_email(email)
    return {"mailbox": mailbox, "prefix": f"{mailbox} ", "prefix_chars": len(mailbox) + 1}
