"""Lanes of reads: a read waits only for reads of its own lane, and for a limited time.

Engines give each lane connections of its own, or a share of their sessions.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

from store.errors import StoreError


class Lane(StrEnum):
    """The kinds of reads, from those that everybody waits for to those that may take long."""

    SNAPSHOT = "snapshot"
    PAGES = "pages"
    PAST = "past"
    # Reads of the compute process, audits and moves.
    BATCH = "batch"


# The slowest read of a call takes less than a second on ten million rows. A batch may read every
# stored bar.
READ_LIMITS_S = {Lane.SNAPSHOT: 10.0, Lane.PAGES: 10.0, Lane.PAST: 10.0, Lane.BATCH: 600.0}


@asynccontextmanager
async def limit_seconds(lane: Lane, database: str, activity: str) -> AsyncIterator[None]:
    """Raise StoreError if the block takes longer than a read of the lane may."""
    limit_s = READ_LIMITS_S[lane]
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise StoreError(f"{database}: {activity} took longer than {limit_s:g} s") from error
