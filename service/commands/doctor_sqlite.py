"""The doctor's checks of the two SQLite files and their disk, all read-only."""

import os
import shutil
from pathlib import Path

from service.commands.console import Finding
from service.config.settings import Settings
from service.config.stores import ADOPT_HINT, RESTORE_HINT, StoreKind, get_path, has_store
from store.errors import StoreError
from store.sqlite.copies import check_integrity
from store.sqlite.schema import ACCESS_MIGRATIONS, MARKET_MIGRATIONS, list_applied_migrations

WARN_FREE_BYTES, MIN_FREE_BYTES = 2 * 2**30, 2**28


async def check_market(settings: Settings) -> list[Finding]:
    """Check the file of market data and its disk."""
    found = await _check_file(settings, "market", MARKET_MIGRATIONS, "`signals serve` creates one")
    return [found, check_disk(settings.market_path)]


async def check_access(settings: Settings) -> list[Finding]:
    """Check the file of keys."""
    creation_hint = f"{RESTORE_HINT}, or {ADOPT_HINT}"
    return [await _check_file(settings, "access", ACCESS_MIGRATIONS, creation_hint)]


async def _check_file(
    settings: Settings, kind: StoreKind, migrations: tuple[str, ...], creation_hint: str
) -> Finding:
    path = get_path(settings, kind)
    try:
        if not await has_store(settings, kind):
            text = f"there is no store at {path.absolute()}: {creation_hint}"
            # The first start creates both files. If only the keys' is missing, they are lost.
            is_first_start = kind == "access" and not await has_store(settings, "market")
            return Finding("warn" if is_first_start else "fix", "store", text)
        pending_count = len(migrations) - len(list_applied_migrations(path, migrations))
        check_integrity(path, "quick_check")
    except StoreError as error:
        return Finding("fix", "store", f"{error} (to restore a backup, use `signals restore`)")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        return Finding("fix", "store", f"{path} and its folder must be writable by this user")
    if pending_count:
        text = f"{path} has an older schema: the next start copies and migrates it"
        return Finding("warn", "store", text)
    return Finding("ok", "store", f"{path} is intact and up to date")


def check_disk(path: Path) -> Finding:
    """Check the free space at a file's folder."""
    if not path.parent.is_dir():
        return Finding("fix", "disk", f"there is no folder {path.parent}")
    free = shutil.disk_usage(path.parent).free
    text = f"{free / 2**30:.1f} GiB are free at {path.parent.absolute()}"
    if free < MIN_FREE_BYTES:
        return Finding("fix", "disk", f"{text}: free some space, because without it all calls fail")
    return Finding("warn" if free < WARN_FREE_BYTES else "ok", "disk", text)
