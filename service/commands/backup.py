"""`signals backup`, `restore` and `prune`: copies of both files, complete or none, and old rows."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp

from schemas.errors import ArgumentsError
from schemas.vocabulary import Clock
from service.commands.console import echo, open_progress_bar
from service.config.settings import Settings
from service.config.stores import (
    BACKUP_FAILED_NOTICE,
    BACKUP_NOTICE,
    open_access,
    open_market,
    refuse_missing_store,
    refuse_older_schema,
    refuse_wrong_clock,
)
from store.access_rows import Notice
from store.sqlite.database_files import (
    check_integrity,
    copy_database,
    free_spare,
    keep_spare,
    open_read_only,
    sync_folder,
)
from store.sqlite.schema import (
    ACCESS_MIGRATIONS,
    MARKET_MIGRATIONS,
    list_applied_migrations,
)
from store.store_errors import StoreError

# Files in a backup are named as in a store, so SIGNALS_DATABASE_URL can point to the backup.
MARKET_FILE, ACCESS_FILE = "signals.db", "signals.db-access"
MIGRATIONS_BY_FILE = {MARKET_FILE: MARKET_MIGRATIONS, ACCESS_FILE: ACCESS_MIGRATIONS}
SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")


async def backup(settings: Settings, folder: Path | None, clock: Clock) -> int:
    """Copy the store into a new folder and print its path; StoreError if that fails."""
    _refuse_postgres(settings)
    await refuse_missing_store(settings)
    time, market = datetime.fromtimestamp(clock() / 1000, UTC), settings.market_path
    target = folder or market.with_name(f"{market.name}.backup-{time:%Y%m%dT%H%M%SZ}")
    try:
        print(await asyncio.to_thread(_write_backup, _map_store_paths(settings), target))
    except StoreError as error:
        await _keep_notice(settings, Notice(BACKUP_FAILED_NOTICE, str(error), clock()))
        raise
    await _keep_notice(settings, Notice(BACKUP_NOTICE, str(target), clock()))
    return 0


async def _keep_notice(settings: Settings, notice: Notice) -> None:
    """Let the doctor and the metrics know; not in a store that opening it would migrate."""
    with suppress(StoreError):
        await refuse_older_schema(settings)
        async with open_access(settings) as store:
            await store.put_notice(notice)


async def restore(settings: Settings, folder: Path) -> int:
    """Copy a backup to the configured database; StoreError if another store exists there.

    A store of keys that is the one of the backup stays: a restore that was killed put it there, or
    only the market data were lost.
    """
    _refuse_postgres(settings)
    files = _map_store_paths(settings)
    ids = [_read_store_id(path) for path in (settings.access_path, folder / ACCESS_FILE)]
    if ids[0] == ids[1] is not None:
        echo(f"{files.pop(ACCESS_FILE)} is the store of keys of this backup: it stays as it is.")
    for path in files.values():
        # SQLite could apply a leftover log of another database to the restored file.
        for suffix in SQLITE_SUFFIXES:
            existing = path.with_name(path.name + suffix)
            if existing.exists():
                raise StoreError(
                    f"{existing} already exists: move it away, or set SIGNALS_DATABASE_URL to a "
                    "path where no file exists"
                )
    for name, migrations in MIGRATIONS_BY_FILE.items():
        copy = folder / name
        if not copy.is_file() or not list_applied_migrations(copy, migrations):
            raise StoreError(f"{folder} is not a complete backup: {name} is missing or empty")
    await asyncio.to_thread(_restore_files, files, folder)
    echo(f"Restored {' and '.join(map(str, reversed(files.values())))} from {folder}.")
    return 0


async def prune_stores(settings: Settings, clock: Clock) -> int:
    """Delete the rows and print how many there were; NotReadyError if the clock looks wrong."""
    # Imported here, because the other commands of this module need none of them.
    from access.maintenance import prune_access
    from service.config.providers import open_provider

    await refuse_missing_store(settings)
    if settings.is_sqlite:
        # Before the stores are opened, which a full disk does not let happen.
        free_spare(settings.market_path)
    async with AsyncExitStack() as stack:
        market = await stack.enter_async_context(open_market(settings))
        await refuse_wrong_clock(settings, market, clock())
        access = await stack.enter_async_context(open_access(settings))
        provider = open_provider(settings, access, clock)
        stack.push_async_callback(provider.close)
        access_rows, _ = await prune_access(access, provider, clock())
        row_count = await market.prune() + access_rows
    if settings.is_sqlite:
        keep_spare(settings.market_path)
    print(f"pruned {row_count} rows")
    return 0


def _map_store_paths(settings: Settings) -> dict[str, Path]:
    # The order matters: the market file comes last, and without it there is no store. So a restore
    # that was interrupted is never taken for a complete one.
    return {ACCESS_FILE: settings.access_path, MARKET_FILE: settings.market_path}


def _write_backup(files: Mapping[str, Path], folder: Path) -> Path:
    """Copy files into a folder, which gets its final name only when it is complete."""
    folder = folder.resolve()
    try:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise ArgumentsError(f"{folder} exists and is not an empty folder: choose another path")
        # A name that no other folder has, so that this one may be removed.
        unfinished = Path(mkdtemp(prefix=f"{folder.name}.unfinished-", dir=folder.parent))
        try:
            for name, path in files.items():
                _copy_with_progress_bar(path, unfinished / name, f"copying {path.name}")
            os.replace(unfinished, folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        sync_folder(folder.parent)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot back up into {folder}: {error}") from error
    return folder


def _restore_files(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files out of a backup, check their integrity, and only then rename them in place."""
    paths_by_unfinished = {
        path.with_name(f"{path.name}.unfinished"): path for path in files.values()
    }
    try:
        for unfinished, name in zip(paths_by_unfinished, files, strict=True):
            # SQLite would apply the journal of a copy that was killed to this one.
            _remove_files((unfinished, unfinished.with_name(f"{unfinished.name}-journal")))
            _copy_with_progress_bar(folder / name, unfinished, f"copying {name}")
            check_integrity(unfinished)
        for unfinished, path in paths_by_unfinished.items():
            os.replace(unfinished, path)
            sync_folder(path.parent)
    except StoreError:
        _remove_files(paths_by_unfinished)
        raise
    except (sqlite3.Error, OSError) as error:
        _remove_files(paths_by_unfinished)
        raise StoreError(f"cannot restore {folder}: {error}") from error


def _copy_with_progress_bar(path: Path, target: Path, label: str) -> None:
    with open_progress_bar(label) as on_progress:
        copy_database(path, target, on_progress)


def _remove_files(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _refuse_postgres(settings: Settings) -> None:
    if not settings.is_sqlite:
        raise StoreError(
            f"{settings.store_name} is a PostgreSQL database: use pg_dump and pg_restore, with the "
            "schemas signals_market and signals_access together"
        )


def _read_store_id(path: Path) -> object:
    """Return the id that all copies of a store of keys have, None if the file has none."""
    with suppress(sqlite3.Error), closing(open_read_only(path)) as connection:
        return connection.execute("SELECT value FROM store_id").fetchone()
    return None
