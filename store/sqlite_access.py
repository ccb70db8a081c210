"""The access store on SQLite: keys alone in a file of their own, durable at each commit."""

from pathlib import Path
from typing import Self

from store.migrations import ACCESS_MIGRATIONS
from store.rows import KeyRow
from store.sqlite_connections import Connections
from store.sqlite_reads import all_rows

_KEY = "SELECT id, label, created_at, revoked_at FROM keys "


class SqliteAccessStore:
    """An AccessStore on one SQLite file."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Migrate and open a file, creating it where it is missing; StoreError in one line."""
        return cls(await Connections.open(path, ACCESS_MIGRATIONS, "PRAGMA synchronous = FULL"))

    async def close(self) -> None:
        """Close every connection; idempotent."""
        await self._connections.close()

    async def create_key(self, key_hash: bytes, label: str, created_at: int) -> int:
        """Store a key durably and return its id."""
        sql = "INSERT INTO keys (key_hash, label, created_at) VALUES (?, ?, ?) RETURNING id"
        async with self._connections.writing() as db:
            rows = await all_rows(db, sql, key_hash, label, created_at)
        return int(rows[0][0])

    async def find_key(self, key_hash: bytes) -> KeyRow | None:
        """Return the key with this hash, revoked or not."""
        async with self._connections.querying() as db:
            rows = await all_rows(db, _KEY + "WHERE key_hash = ?", key_hash)
        return KeyRow(*rows[0]) if rows else None

    async def list_keys(self) -> list[KeyRow]:
        """Return every key, oldest first."""
        async with self._connections.querying() as db:
            return [KeyRow(*row) for row in await all_rows(db, _KEY + "ORDER BY id")]

    async def revoke_key(self, key_id: int, revoked_at: int) -> bool:
        """Revoke a key for good, the first time counting; False where no such key exists."""
        sql = "UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? RETURNING id"
        async with self._connections.writing() as db:
            return bool(await all_rows(db, sql, revoked_at, key_id))
