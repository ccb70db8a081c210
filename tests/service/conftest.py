"""A service on recorded bars, and everything that one public audit reads of it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.public_audit.answers import Answers
from service.public_audit.audit import steady_answers
from service.public_audit.reader import Reader
from tests.compute.recorded import cut, recorded_folder, require_recorded
from tests.service.commands import signals
from tests.service.test_serve import served_process

SUBSET = {"BTC": 5000, "ETH": 1500, "SOL": 1500}

Service = tuple[str, str]


@contextmanager
def service_of(folder: Path, bars: Path) -> Iterator[Service]:
    """Replay bars and serve them; yield the address and a key."""
    assert signals(folder, "replay", "--bars", str(bars)).returncode == 0
    api_key = signals(folder, "keys", "create", "--label", "tests").stdout.strip()
    with served_process(folder, source=f"files:{bars}") as (address, _):
        yield address, api_key


def subset(folder: Path) -> Path:
    """Write the newest bars of some coins, and those that a stock has until the coins end."""
    for ticker, rows in SUBSET.items():
        cut(folder, (f"{ticker}_1h.csv", f"{ticker}_funding.csv"), rows)
    end = (folder / "BTC_1h.csv").read_text().splitlines()[-1].split(",")[0]
    header, *lines = (recorded_folder() / "NVDA_1h.csv").read_text().splitlines()
    kept = [line for line in lines if int(line.split(",")[0]) <= int(end)]
    (folder / "NVDA_1h.csv").write_text("\n".join([header, *kept]) + "\n")
    return folder


@pytest.fixture(scope="session")
def recorded_service(tmp_path_factory) -> Iterator[Service]:
    require_recorded()
    folder = tmp_path_factory.mktemp("public")
    with service_of(folder, subset(folder / "bars")) as running:
        yield running


@pytest.fixture(scope="session")
def recorded_answers(recorded_service) -> Answers:
    async def read() -> Answers:
        async with Reader(*recorded_service, lambda done, expected: None) as reader:
            return await steady_answers(reader, 365)

    return asyncio.run(read())
