"""The context of commits: what they write beside bars, changes and alerts, as rows to hash.

It has the times of the commit, its new assets, epochs, counts of missing bars and sources. The
first commit also covers the facts that never change.
"""

from collections.abc import Sequence

from store.digest import ContextRow
from store.sql.database import Database

# The facts by which the history of a store was built.
HASHED_FACTS = ("source", "started_at")
# Each has the kind of its rows; the first column is the number of the commit.
_CONTEXT_TABLES = {
    "asset": "SELECT pass, ticker, publish_from FROM assets WHERE pass BETWEEN ? AND ?",
    "epoch": """
        SELECT e.pass, a.ticker, e.timeframe, e.indicator, e.epoch, e.version, e.generation,
          e.from_close_time, e.reason
        FROM epochs e JOIN assets a ON a.id = e.asset_id WHERE e.pass BETWEEN ? AND ?
    """,
    "missing": """
        SELECT m.pass, a.ticker, m.generation, m.count, m.first_close, m.last_close
        FROM missing_bars m JOIN assets a ON a.id = m.asset_id WHERE m.pass BETWEEN ? AND ?
    """,
    "source": """
        SELECT s.pass, a.ticker, s.generation, s.listing
        FROM sources s JOIN assets a ON a.id = s.asset_id WHERE s.pass BETWEEN ? AND ?
    """,
    "pass": """
        SELECT number, market_time, written_at, first_created_at, last_created_at
        FROM passes WHERE number BETWEEN ? AND ?
    """,
}
_LIST_FACTS = f"""
SELECT key, value FROM facts WHERE key IN ({", ".join("?" for _ in HASHED_FACTS)})
"""


async def load_context(db: Database, first: int, last: int) -> list[ContextRow]:
    """Return the context of the commits from one number to another; from 0 on, with the facts.

    Each row has its kind and the number of its commit before its values; a fact has no number.
    """
    rows = [
        (kind, *row)
        for kind, sql in _CONTEXT_TABLES.items()
        for row in await db.execute(sql, first, last)
    ]
    if first == 0:
        rows += [("fact", *row) for row in await db.execute(_LIST_FACTS, *HASHED_FACTS)]
    return rows


def build_times_row(times: Sequence[int | None]) -> ContextRow:
    """Return the row of a commit's times: number, then the columns up to `last_created_at`."""
    return ("pass", *times)
