"""Clients of the older revisions get the same bytes as before revision 2026-07-28 was served."""

import json

import pytest

from tests.support.example_market import make_coverage
from tests.support.legacy_record import FILE, record_bytes
from tests.support.running_service import run_service

pytestmark = pytest.mark.clause("endpoint", "4.14.3", "4.14.11")


async def test_requests_of_older_revisions_get_the_recorded_bytes(tmp_path):
    async with run_service(tmp_path, make_coverage()) as served:
        recorded = await record_bytes(served)
    expected = json.loads(FILE.read_text())
    assert len(recorded) == len(expected)
    for got, wanted in zip(recorded, expected, strict=True):
        assert got == wanted
