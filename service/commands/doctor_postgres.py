"""The doctor's checks of a PostgreSQL database, all read-only."""

from typing import Final

from service.commands.console import Finding
from service.config.settings import Settings
from service.config.stores import ADOPT_HINT, RESTORE_HINT, StoreKind, has_store
from store.errors import StoreError
from store.postgres.database_info import count_missing_migrations, load_database_info
from store.postgres.schema import SCHEMAS

CONNECTION_HINT: Final = "set SIGNALS_DATABASE_URL to a database that exists and accepts this user"


async def check_market(settings: Settings) -> list[Finding]:
    """Check the schema of market data, and report the process that computes on it."""
    found = await _check_schema(settings, "market", "`signals serve` creates one")
    if found.grade == "fix":
        return [found]
    database_info = await load_database_info(
        settings.database_url.get_secret_value(), SCHEMAS["market"][0]
    )
    size = f"{database_info.size_bytes / 2**20:.0f} MiB"
    text = f"{found.text} (PostgreSQL {database_info.server_version}, {size})"
    computing = (
        "no process at the moment"
        if database_info.lock_holder is None
        else database_info.lock_holder
    )
    return [found._replace(text=text), Finding("ok", "computing", computing)]


async def check_access(settings: Settings) -> list[Finding]:
    """Check the schema of keys."""
    creation_hint = f"{RESTORE_HINT}, or {ADOPT_HINT}"
    return [await _check_schema(settings, "access", creation_hint)]


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
        text = f"there is no store at {name}: {creation_hint}"
        # The first start creates both schemas. If only the keys' is missing, they are lost.
        is_first_start = kind == "access" and not await has_store(settings, "market")
        return Finding("warn" if is_first_start else "fix", "store", text)
    if pending_count:
        return Finding("warn", "store", f"{name} has an older schema: the next start migrates it")
    return Finding("ok", "store", f"{name} is up to date")
