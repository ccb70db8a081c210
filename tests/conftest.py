"""Fixtures shared by the tests of several packages."""

import asyncio
import gc
import inspect
import os
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import certifi
import pytest
import pytest_asyncio
from hypothesis import settings

from compute.signing.log_signer import LogSigner
from tests.support.example_market import NOON, make_coverage, seed_market
from tests.support.postgres.server import (
    PostgresServer,
    SharedServer,
    copy_database,
    find_installations,
    get_shared_server,
)
from tests.support.running_service import RunningService, Transport, open_stores, run_service
from tests.support.store_homes import HomeFactory, StoreHome, make_postgres_home, make_sqlite_home

# Read at import: a worker whose parent has died would see another pid.
PARENT = os.getppid()
LOG_ORIGIN = "signals.example/api/v1/log"
MEMORY = Path("/dev/shm")
ROOMY_BYTES = 4 << 30
MOST_CASES = 5
MAJORS = [
    pytest.param(major, id=f"postgres{major}", marks=pytest.mark.prove if place else ())
    for place, major in enumerate(find_installations())
]

# With FAIL_ON_SKIP=1, as in CI, any other skip fails, because a missing tool would turn
# tests off unnoticed. The listed ones depend on data that a checkout lacks, or on the user.
EXPECTED_SKIPS = re.compile(r"no recorded bars in|nothing is forbidden to root$|chroot needs root$")

# No test may fail because the machine is busy.
settings.register_profile("all examples", deadline=None)
settings.register_profile("few examples", max_examples=20, deadline=None)
settings.load_profile("all examples")

# The HTTP client imports it at every request; if it is missing, each import searches every folder.
if find_spec("sniffio") is None:
    sys.modules["sniffio"] = None


@pytest.fixture(params=["mcp", "rest"])
def transport(request: pytest.FixtureRequest) -> Transport:
    """Each transport in turn, so that a test runs over both."""
    return request.param


@pytest.fixture(scope="session")
def single_ca_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    end = "-----END CERTIFICATE-----\n"
    path = tmp_path_factory.mktemp("trusted") / "one.pem"
    path.write_text(certifi.contents().partition(end)[0] + end)
    return path


@pytest.fixture
def use_single_ca(single_ca_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep clients, which use no TLS here, from loading every trusted certificate."""
    monkeypatch.setenv("SSL_CERT_FILE", str(single_ca_file))


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a seeded simulated store, for tests to copy."""

    async def seed_once(folder: Path) -> None:
        async with open_stores(folder) as (market, _):
            await seed_market(market, make_coverage())
            await LogSigner(
                market.feed_log, folder / "log-key.json", LOG_ORIGIN, lambda: NOON
            ).sign()

    folder = tmp_path_factory.mktemp("seeded")
    asyncio.run(seed_once(folder))
    return folder


@pytest.fixture
async def served_alone(tmp_path: Path, seeded: Path) -> AsyncIterator[RunningService]:
    """The service on a seeded simulated store, for one test only."""
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    async with run_service(tmp_path) as running:
        yield running


@pytest.fixture
def served(served_alone: RunningService) -> RunningService:
    return served_alone


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def served_shared(
    tmp_path_factory: pytest.TempPathFactory, seeded: Path
) -> AsyncIterator[RunningService]:
    """One such service, shared by tests that only read."""
    folder = tmp_path_factory.mktemp("shared")
    shutil.copytree(seeded, folder, dirs_exist_ok=True)
    async with run_service(folder) as running:
        yield running


@pytest.fixture
async def served_empty(tmp_path: Path) -> AsyncIterator[RunningService]:
    """The service on a store in which nothing has been computed."""
    async with run_service(tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def get_postgres_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], SharedServer]:
    """Return the run's PostgreSQL server of a major version, started by the first test."""
    folder, run = tmp_path_factory.getbasetemp(), os.getpid()
    if hasattr(request.config, "workerinput"):
        folder, run = folder.parent, PARENT
    return lambda major: get_shared_server(major, folder, run)


@pytest.fixture(scope="session", params=MAJORS)
def postgres(
    request: pytest.FixtureRequest, get_postgres_server: Callable[[str], SharedServer]
) -> SharedServer:
    """The run's PostgreSQL server of each major version in turn."""
    return get_postgres_server(request.param)


@pytest.fixture
async def database(postgres: SharedServer) -> AsyncIterator[str]:
    async with copy_database(postgres.url) as url:
        yield url


@pytest.fixture
def private_postgres(postgres: SharedServer) -> Iterator[PostgresServer]:
    """A PostgreSQL server for one test, which can stop, freeze and restart it."""
    with PostgresServer.start_new(postgres.template) as server:
        yield server


@pytest.fixture(params=["sqlite", *MAJORS])
def new_home(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    get_postgres_server: Callable[[str], SharedServer],
) -> HomeFactory:
    """A function that creates homes of stores, for each engine in turn."""
    if request.param == "sqlite":
        return lambda: make_sqlite_home(tmp_path)
    return lambda: make_postgres_home(get_postgres_server(request.param).url)


@pytest.fixture
async def home(new_home: HomeFactory) -> AsyncIterator[StoreHome]:
    """A home of stores for each engine in turn."""
    async with new_home() as home:
        yield home


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples outside of proofs, and keep temporary files in memory if there is room."""
    if config.option.markexpr == "not prove":
        settings.load_profile("few examples")
    # On a disk every commit waits for it.
    is_told = "TMPDIR" in os.environ
    if not is_told and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOMY_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Leave repetitions to proofs, run tests that share a service in its loop, long tests first."""
    mark_cases_for_proofs(items)
    config.hook.pytest_deselected(items=[item for item in items if repeats_another_version(item)])
    items[:] = [item for item in items if not repeats_another_version(item)]
    for item in items:
        is_async = inspect.iscoroutinefunction(getattr(item, "obj", None))
        if is_async and "served_shared" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
    yield
    items[:] = share_long_tests(items, getattr(config, "workerinput", {}).get("workercount", 1))


def repeats_another_version(item: pytest.Item) -> bool:
    """Return whether a test outside of the stores, where all SQL is, repeats it on a PostgreSQL."""
    is_second = any(str(case.id) in item.nodeid for case in MAJORS[1:])
    return is_second and not item.nodeid.startswith(("tests/store/", "tests/scaling/"))


def share_long_tests(items: list[pytest.Item], worker_count: int) -> list[pytest.Item]:
    """Return the tests in an order in which every worker has its share of the long ones first.

    pytest-xdist gives each worker an equal part of the list. A long test that starts last keeps
    one processor busy while the others have nothing to do.
    """
    long = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if not item.get_closest_marker("long")]
    size = -(-len(others) // worker_count) or 1
    return [
        item
        for worker in range(worker_count)
        for item in (*long[worker::worker_count], *others[worker * size : (worker + 1) * size])
    ]


def pytest_collection_finish() -> None:
    """Freeze imported objects, so that the garbage collector does not traverse them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn an unexpected skip into a failure when FAIL_ON_SKIP is 1."""
    report = yield
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and os.environ.get("FAIL_ON_SKIP") == "1":
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not EXPECTED_SKIPS.search(reason):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: unexpected skip: {reason}"
    return report


def mark_cases_for_proofs(items: Iterable[pytest.Item]) -> None:
    """Mark as `prove` what a parametrized test only repeats.

    Of several parameters, each value stays in at least one combination. Of what is left, few cases
    of a coroutine, spread over the table, remain, or with `sampled(step)` every step-th. What runs
    on files and on PostgreSQL runs on files: tests/store/postgres executes every statement of a
    request.
    """
    tests = defaultdict[str, list[Any]](list)
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("prove") is None:
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        kept = _select_combinations(
            [item for item in cases if "postgres" not in item.callspec.id] or cases
        )
        sampled = cases[0].get_closest_marker("sampled")
        # A table of a plain function costs nothing, and each of its rows is a rule. An odd step
        # leaves both of two values that take turns.
        is_cheap = not inspect.iscoroutinefunction(getattr(cases[0], "obj", None))
        step = 1 if is_cheap else -(-len(kept) // MOST_CASES) | 1
        kept = kept[:: sampled.args[0] if sampled else step]
        for item in cases:
            if item not in kept:
                item.add_marker(pytest.mark.prove)


def _select_combinations(cases: Sequence[Any]) -> list[Any]:
    """Return few cases that have every value of every parameter, in their order."""
    seen = set[tuple[int, str]]()
    kept = []
    # First those of which every value is new, then those with any new value.
    for is_needed in (all, any):
        for item in cases:
            # The id of each parameter's value. The public `indices` number the whole cases.
            values = list(enumerate(item.callspec._idlist))
            if is_needed(value not in seen for value in values):
                seen.update(values)
                kept.append(item)
    return [item for item in cases if item in kept]
