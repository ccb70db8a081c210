"""What the doctor says of a PostgreSQL database, which it changes nothing in."""

from typing import Final

from service.commands.console import Finding
from service.config.settings import Settings
from service.config.stores import Part
from store.errors import StoreError
from store.postgres.database_info import facts, missing
from store.postgres.schema import SCHEMAS

REACH: Final = "set SIGNALS_DATABASE_URL to a database that is there and takes this user"


async def market_findings(settings: Settings) -> list[Finding]:
    """Look at the schema of market data, first, and at who computes on it."""
    found = await _schema(settings, "market", "`signals serve` makes one")
    if found.grade == "fix":
        return [found]
    now = await facts(settings.database_url.get_secret_value(), SCHEMAS["market"][0])
    served = f"{found.text} (PostgreSQL {now.server}, {now.size_bytes / 2**20:.0f} MiB)"
    computing = "no process is at the moment" if now.computing is None else now.computing
    return [found._replace(text=served), Finding("ok", "computing", computing)]


async def access_findings(settings: Settings) -> list[Finding]:
    """Look at the schema of keys."""
    return [await _schema(settings, "access", "`signals keys create` makes one")]


async def _schema(settings: Settings, part: Part, made_by: str) -> Finding:
    schema, migrations = SCHEMAS[part]
    name = f"{settings.store_name} ({schema})"
    try:
        lacks = await missing(settings.database_url.get_secret_value(), schema, migrations)
    except StoreError as error:
        return Finding("fix", "store", f"{error} ({REACH})")
    if lacks == len(migrations):
        text = f"there is none at {name}: {made_by}"
        return Finding("fix" if part == "market" else "warn", "store", text)
    if lacks:
        return Finding(
            "warn", "store", f"{name} is of an older version: the next start migrates it"
        )
    return Finding("ok", "store", f"{name} is up to date")
