"""Every column of the market store, and the schema itself: a change behind its back is found."""

import asyncio
import re
import shutil
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from store.errors import StoreError
from tests.compute.audit.tampered_store import audit_home, fill_store
from tests.conftest import MAJORS
from tests.support.postgres.databases import copy_database, create_database
from tests.support.postgres.shared_server import SharedServer
from tests.support.store_homes import PostgresHome, SqliteHome, StoreHome, make_postgres_home
from tests.support.tampering import (
    Column,
    list_columns,
    list_other_values,
    open_unguarded,
    read_rows,
    replace_value,
)

pytestmark = pytest.mark.clause("audit")

CopyHome = Callable[[], AbstractAsyncContextManager[StoreHome]]
LIST: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[3] / "docs" / "tampers.toml").read_text(encoding="utf-8")
)
PATTERNS = {name: re.compile(way["finding"]) for name, way in LIST["ways"].items()}


@dataclass(frozen=True)
class Expected:
    """The ways by which a change of a column is found, and why some are not."""

    ways: tuple[str, ...]
    unless: str = ""

    @classmethod
    def parse(cls, value: Any) -> "Expected":
        return cls(**value) if isinstance(value, dict) else cls(tuple(value))


EXPECTED: Mapping[Column, Expected] = {
    Column(table, name): Expected.parse(value)
    for table, columns in LIST["columns"].items()
    for name, value in columns.items()
}


@pytest.fixture(scope="module", params=["sqlite", *MAJORS])
def copy_home(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    get_postgres_server: Callable[[str], SharedServer],
) -> CopyHome:
    """A function that copies the filled store, for each engine in turn."""
    if request.param == "sqlite":
        filled = SqliteHome(tmp_path_factory.mktemp("filled"))
        asyncio.run(fill_store(filled))
        return lambda: copy_files(filled, tmp_path_factory)
    server = get_postgres_server(request.param).url
    name = asyncio.run(fill_database(server))
    return lambda: copy_filled_database(server, name)


@asynccontextmanager
async def copy_files(
    filled: SqliteHome, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[StoreHome]:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(filled.folder, folder, dirs_exist_ok=True)
    yield SqliteHome(folder)
    shutil.rmtree(folder)


async def fill_database(server: str) -> str:
    """Fill a database; return its name."""
    async with make_postgres_home(server) as home:
        await fill_store(home)
        url = await create_database(server, home.address.rpartition("/")[2])
    return url.rpartition("/")[2]


@asynccontextmanager
async def copy_filled_database(server: str, name: str) -> AsyncIterator[StoreHome]:
    async with copy_database(server, name) as url:
        yield PostgresHome(url)


async def find_faults(home: StoreHome) -> list[str]:
    """Return the findings of an audit; those of a store that does not open are its error."""
    try:
        return (await audit_home(home)).findings
    except StoreError as error:
        return [str(error)]


def list_ways(findings: list[str]) -> set[str]:
    """Return the ways by which findings were found."""
    return {name for name, p in PATTERNS.items() if any(map(p.search, findings))}


async def test_the_store_is_clean_and_has_rows_in_every_table(copy_home: CopyHome) -> None:
    async with copy_home() as home:
        report = await audit_home(home)
        assert (report.findings, dict(report.not_verifiable)) == ([], {})
        async with open_unguarded(home) as session:
            for table in {column.table for column in await list_columns(home)}:
                assert (await read_rows(session, table))[1], table


async def test_the_list_names_every_column_of_the_store(copy_home: CopyHome) -> None:
    async with copy_home() as home:
        columns = set(await list_columns(home))
        assert {way for one in EXPECTED.values() for way in one.ways} == PATTERNS.keys()
        assert columns <= EXPECTED.keys()
        only_postgres = {column for column in EXPECTED if column.table == "version"}
        assert EXPECTED.keys() - columns <= only_postgres


@pytest.mark.sampled(8)
@pytest.mark.parametrize("column", EXPECTED, ids=".".join)
async def test_a_changed_value_is_found(copy_home: CopyHome, column: Column) -> None:
    expected = EXPECTED[column]
    for row in ("first", "middle", "last"):
        async with copy_home() as home:
            if column not in await list_columns(home):
                pytest.skip("no recorded bars in this engine")
            findings = await find_change(home, column, row)
            ways = list_ways(findings)
            assert ways & set(expected.ways) or expected.unless, findings


async def find_change(home: StoreHome, column: Column, place: str) -> list[str]:
    """Change a value and audit; return the findings, or that the constraints refuse it."""
    for unchecked in (False, True):
        if await change_value(home, column, place, unchecked=unchecked):
            return await find_faults(home)
    return ["refused"]


async def change_value(home: StoreHome, column: Column, place: str, *, unchecked: bool) -> bool:
    """Change a column of the first, middle or last row; False if the constraints refuse it."""
    async with open_unguarded(home, unchecked=unchecked) as session:
        names, rows = await read_rows(session, column.table)
        row = {"first": 0, "middle": len(rows) // 2, "last": len(rows) - 1}[place]
        value = rows[row][names.index(f'"{column.name}"')]
        return await replace_value(session, column, row, list_other_values(value))
