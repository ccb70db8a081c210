"""Creates databases on a running server, and ends all sessions of one."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg


def make_empty_database(server: str) -> AbstractAsyncContextManager[str]:
    """Create an empty database, dropped at the end of the block; yield its URL."""
    return copy_database(server, "template1")


@asynccontextmanager
async def copy_database(server: str, template: str) -> AsyncIterator[str]:
    """Copy an unused database; drop the copy at the end of the block; yield its URL."""
    url = await create_database(server, template)
    try:
        yield url
    finally:
        await _run_statement(server, f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")


async def create_database(server: str, template: str) -> str:
    """Copy a database and keep the copy; return its URL."""
    name = f"test_{uuid4().hex}"
    await _run_statement(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    return urlsplit(server)._replace(path=f"/{name}").geturl()


async def _run_statement(server: str, statement: str) -> None:
    admin = await asyncpg.connect(server)
    try:
        await admin.execute(statement)
    finally:
        await admin.close()


async def cut_sessions(url: str) -> None:
    """Terminate all sessions of a database and wait until they have ended."""
    session = await asyncpg.connect(url)
    await session.execute(
        "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await session.close()
