"""`signals backup` and `signals restore`: whole copies of both files, or none at all."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from schemas.clock import Clock
from service.commands.console import progress_bar, tell
from service.config.settings import Settings
from store.errors import StoreError
from store.sqlite.copies import check_whole, copy
from store.sqlite.schema import ACCESS_MIGRATIONS, MARKET_MIGRATIONS, applied, migrate

# The names in a backup are those of a store, so that SIGNALS_DATABASE_URL can point into one.
MARKET, ACCESS = "signals.db", "signals.db-access"
MIGRATIONS = {MARKET: MARKET_MIGRATIONS, ACCESS: ACCESS_MIGRATIONS}
BESIDE = ("", "-wal", "-shm", "-journal")


async def backup(settings: Settings, folder: Path | None, clock: Clock) -> int:
    """Copy the store into a new folder and print it; StoreError where that cannot be done."""
    _refuse_postgres(settings)
    if not settings.market_path.exists():
        raise StoreError(f"there is no store at {settings.store_name}: set SIGNALS_DATABASE_URL")
    if not settings.access_path.exists():
        migrate(settings.access_path, ACCESS_MIGRATIONS)
    target = folder or _default_folder(settings, clock())
    print(await asyncio.to_thread(_backed_up, _files(settings), target))
    return 0


async def restore(settings: Settings, folder: Path) -> int:
    """Put a backup where the settings mean the store to be and nothing is yet."""
    _refuse_postgres(settings)
    files = _files(settings)
    for path in files.values():
        _refuse_existing(path)
    for name, migrations in MIGRATIONS.items():
        _refuse_half(folder, name, migrations)
    await asyncio.to_thread(_restored, files, folder)
    tell(f"Restored {settings.market_path} and {settings.access_path} from {folder}.")
    return 0


def _files(settings: Settings) -> Mapping[str, Path]:
    """Return where the files of a backup belong; the market comes last.

    So it does when they are put in place: without it nothing passes for a store.
    """
    return {ACCESS: settings.access_path, MARKET: settings.market_path}


def _default_folder(settings: Settings, now: int) -> Path:
    time = datetime.fromtimestamp(now / 1000, UTC)
    return settings.market_path.with_name(
        f"{settings.market_path.name}.backup-{time:%Y%m%dT%H%M%SZ}"
    )


def _backed_up(files: Mapping[str, Path], folder: Path) -> Path:
    """Copy files into a folder that has its name only once it is whole."""
    folder = folder.resolve()
    try:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise StoreError(f"{folder} is there and not empty: name another folder")
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        for name, path in files.items():
            _copied(path, unfinished / name, f"copying {path.name}")
        os.replace(unfinished, folder)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot back up into {folder}: {error}") from error
    return folder


def _restored(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files out of a folder, look them through, and only then give them their names."""
    made = {path.with_name(f"{path.name}.unfinished"): path for path in files.values()}
    try:
        for unfinished, name in zip(made, files, strict=True):
            unfinished.unlink(missing_ok=True)
            _copied(folder / name, unfinished, f"copying {name}")
            check_whole(unfinished)
        for unfinished, path in made.items():
            os.replace(unfinished, path)
    except StoreError:
        _remove(made)
        raise
    except (sqlite3.Error, OSError) as error:
        _remove(made)
        raise StoreError(f"cannot restore {folder}: {error}") from error


def _copied(path: Path, target: Path, what: str) -> None:
    with progress_bar(what) as progressed:
        copy(path, target, progressed)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _refuse_postgres(settings: Settings) -> None:
    if not settings.is_sqlite:
        raise StoreError(
            f"{settings.store_name} is copied by PostgreSQL's own tools: pg_dump and pg_restore, "
            "of the schemas signals_market and signals_access together"
        )


def _refuse_existing(path: Path) -> None:
    for ending in BESIDE:
        there = path.with_name(path.name + ending)
        if there.exists():
            raise StoreError(
                f"{there} is there already: move it away, or set SIGNALS_DATABASE_URL to a place "
                "that is free"
            )


def _refuse_half(folder: Path, name: str, migrations: tuple[str, ...]) -> None:
    path = folder / name
    if not path.is_file() or not applied(path, migrations):
        raise StoreError(f"{folder} holds no whole backup: {name} is missing or empty")
