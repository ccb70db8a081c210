"""What the doctor says of the two files, and of the disk that they are on."""

import os
import shutil
from pathlib import Path

from service.commands.console import Finding
from service.config.settings import Settings
from store.errors import StoreError
from store.sqlite.copies import check_whole
from store.sqlite.schema import ACCESS_MIGRATIONS, MARKET_MIGRATIONS, applied

LITTLE_BYTES, TOO_LITTLE_BYTES = 2 * 2**30, 2**28


async def market_findings(settings: Settings) -> list[Finding]:
    """Look at the file of market data, first, and at its disk."""
    found = _file(settings.market_path, MARKET_MIGRATIONS, "`signals serve` makes one")
    return [found, _disk(settings.market_path)]


async def access_findings(settings: Settings) -> list[Finding]:
    """Look at the file of keys."""
    found = _file(settings.access_path, ACCESS_MIGRATIONS, "`signals keys create` makes one")
    return [found._replace(grade="warn" if not settings.access_path.exists() else found.grade)]


def _file(path: Path, migrations: tuple[str, ...], made_by: str) -> Finding:
    if not path.exists():
        return Finding("fix", "store", f"there is none at {path}: {made_by}")
    try:
        missing = len(migrations) - len(applied(path, migrations))
        check_whole(path, "quick_check")
    except StoreError as error:
        return Finding("fix", "store", f"{error} (a backup is put back by `signals restore`)")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        return Finding("fix", "store", f"{path} and its folder must be writable by this user")
    if missing:
        text = f"{path} is of an older version: the next start copies and migrates it"
        return Finding("warn", "store", text)
    return Finding("ok", "store", f"{path} is whole and up to date")


def _disk(path: Path) -> Finding:
    if not path.parent.is_dir():
        return Finding("fix", "disk", f"there is no folder {path.parent}")
    free = shutil.disk_usage(path.parent).free
    text = f"{free / 2**30:.1f} GiB are free at {path.parent.absolute()}"
    if free < TOO_LITTLE_BYTES:
        return Finding("fix", "disk", f"{text}: make room, before nothing can be counted")
    return Finding("warn" if free < LITTLE_BYTES else "ok", "disk", text)
