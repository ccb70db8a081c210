"""A service shared by modules that only read, because starting one takes longer than a test."""

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest_asyncio

from tests.support.running_service import RunningService


@pytest_asyncio.fixture(loop_scope="session")
async def served(served_shared: RunningService) -> AsyncIterator[RunningService]:
    """The shared service, with a client and a key for this test."""
    address = served_shared.base_url
    async with httpx.AsyncClient(base_url=address, verify=False, timeout=60) as client:
        api_key = await served_shared.keys.create("tests")
        yield replace(served_shared, api_key=api_key, client=client)
