"""Reads all changes and alerts after a time, with what is needed to name them.

A row has four values, because each further one takes a seventh longer to read: its time, its code,
its bar and its price. The code is `(asset_id * CELL_CODES + cell code) * MOVES + move`, the cell
code `indicator * 4 + timeframe`, both as stored; the bar is `close_time * EPOCHS + epoch`.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.sql.database import MarketEngine
from store.sql.market_statements import LATEST_REVISION
from store.store_errors import DamagedError

CELL_CODES, MOVES, EPOCHS = 1024, 32, 1 << 20
# The move of a change is 12 if it is published, plus 3 times the reading before + 1 (3 if there was
# none), plus the reading after + 1. That of an alert is ALERT + its action.
PUBLISHED, ALERT = 12, 24
ROW_DTYPE = np.dtype([("created_at", "i8"), ("code", "i8"), ("bar", "i8"), ("price", "f8")])
# SQLite takes 5 ms to open a connection for a part, the driver of PostgreSQL 15 MB of memory.
ROWS_PER_READ = 50_000
_LIST_ROWS = """
SELECT created_at, (CAST(asset_id AS BIGINT) * 1024 + indicator * 4 + timeframe) * 32 + {move},
  close_time * 1048576 + epoch, price
FROM {table} WHERE created_at > :after AND created_at <= :until ORDER BY created_at LIMIT :limit
"""
# One statement for both tables takes a third longer.
LIST_ROWS = {
    "changes": _LIST_ROWS.format(
        table="changes", move='published * 12 + coalesce("before" + 1, 3) * 3 + "after" + 1'
    ),
    "alerts": _LIST_ROWS.format(table="alerts", move="24 + action"),
}
LIST_NAMES = f"SELECT a.id, a.ticker, coalesce({LATEST_REVISION}, 0) FROM assets a ORDER BY a.id"
LIST_RESTATED = """
SELECT asset_id, indicator * 4 + timeframe, epoch, generation FROM epochs WHERE generation <> 0
"""

FeedRows = NDArray[Any]


class FeedNames(NamedTuple):
    """What the rows of the feed refer to.

    `tickers` and `revisions` are by the id of the asset; a revision is the newest one of its bars.
    `epochs` has the revision of each epoch that does not rest on the first one, by asset id, cell
    code and epoch.
    """

    tickers: Mapping[int, str]
    revisions: Mapping[int, int]
    epochs: Mapping[tuple[int, int, int], int]


class LedgerReads:
    """Reads of the rows of both tiers, published or not, and of their names."""

    def __init__(self, engine: MarketEngine) -> None:
        self._engine = engine

    async def load_rows(self, after: int, until: int) -> AsyncIterator[FeedRows]:
        """Yield the rows with `created_at` in (`after`, `until`], some at a time.

        Those of each tier are sorted.
        """
        for statement in LIST_ROWS.values():
            values = {"after": after, "until": until, "limit": ROWS_PER_READ}
            while True:
                part = await self._engine.fold_rows(statement, values, _pack)
                yield part
                if len(part) < ROWS_PER_READ:
                    break
                values["after"] = int(part["created_at"][-1])

    async def load_names(self) -> FeedNames:
        """Return the names of all rows that are stored by now."""
        async with self._engine.begin_read() as db:
            assets = [*await db.execute_page(LIST_NAMES, {})]
            restated = [*await db.execute_page(LIST_RESTATED, {})]
        return FeedNames(
            tickers={id_: ticker for id_, ticker, _ in assets},
            revisions={id_: revision for id_, _, revision in assets},
            epochs={(id_, cell, epoch): revision for id_, cell, epoch, revision in restated},
        )


def _pack(rows: Iterable[tuple[Any, ...]]) -> FeedRows:
    try:
        return np.fromiter(rows, ROW_DTYPE)
    except OverflowError as error:
        raise DamagedError("a row of the feed has a bar of no possible time") from error
