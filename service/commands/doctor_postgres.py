"""What the doctor says of a PostgreSQL database, which it changes nothing in."""

from typing import Final

from service.commands.console import Finding
from service.config.settings import Settings
from service.config.stores import StoreKind
from store.errors import StoreError
from store.postgres.database_info import count_missing_migrations, load_database_info
from store.postgres.schema import SCHEMAS

CONNECTION_HINT: Final = "set SIGNALS_DATABASE_URL to a database that is there and takes this user"


async def check_market(settings: Settings) -> list[Finding]:
    """Look at the schema of market data, first, and at who computes on it."""
    found = await _check_schema(settings, "market", "`signals serve` makes one")
    if found.grade == "fix":
        return [found]
    database_info = await load_database_info(
        settings.database_url.get_secret_value(), SCHEMAS["market"][0]
    )
    size = f"{database_info.size_bytes / 2**20:.0f} MiB"
    text = f"{found.text} (PostgreSQL {database_info.server_version}, {size})"
    computing = (
        "no process is at the moment"
        if database_info.lock_holder is None
        else database_info.lock_holder
    )
    return [found._replace(text=text), Finding("ok", "computing", computing)]


async def check_access(settings: Settings) -> list[Finding]:
    """Look at the schema of keys."""
    return [await _check_schema(settings, "access", "`signals keys create` makes one")]


async def _check_schema(settings: Settings, kind: StoreKind, creation_hint: str) -> Finding:
    schema, migrations = SCHEMAS[kind]
    name = f"{settings.store_name} ({schema})"
    try:
        pending_count = await count_missing_migrations(
            settings.database_url.get_secret_value(), schema, migrations
        )
    except StoreError as error:
        return Finding("fix", "store", f"{error} ({CONNECTION_HINT})")
    if pending_count == len(migrations):
        text = f"there is none at {name}: {creation_hint}"
        return Finding("fix" if kind == "market" else "warn", "store", text)
    if pending_count:
        return Finding(
            "warn", "store", f"{name} is of an older version: the next start migrates it"
        )
    return Finding("ok", "store", f"{name} is up to date")
