"""A service with a log, and a customer who verifies it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from itertools import chain, repeat
from pathlib import Path

import pytest

from tests.doubles.published_log import API_KEY, PublishedLog, make_row, serve_log
from verifier.client import ServiceClient
from verifier.record import Record
from verifier.report import Report
from verifier.verification import Request, Verification

ROW_COUNT = 300
Verify = Callable[..., Awaitable[Report]]


@pytest.fixture
def log(tmp_path: Path) -> PublishedLog:
    """A log of 300 rows, one an hour, in two tiles."""
    log = PublishedLog(tmp_path / "trees")
    log.publish(*map(make_row, range(ROW_COUNT)))
    return log


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
async def verify(log: PublishedLog, state: Path) -> AsyncIterator[Verify]:
    """A function that verifies the log once, as a process of its own would."""
    async with serve_log(log) as address:

        async def run(
            request: Request | None = None,
            now: datetime | None = None,
            took_s: float = 0,
            **changes: object,
        ) -> Report:
            elapsed = chain([0.0], repeat(took_s))
            async with ServiceClient(address, API_KEY) as client:
                verification = Verification(
                    *(client, Record(state), now or log.now, lambda done, total: None),
                    monotonic=lambda: next(elapsed),
                )
                report = await verification.run(replace(request or Request(), **changes))
                report.obstacles = [one.replace(address, "ADDRESS") for one in report.obstacles]
                return report

        yield run
