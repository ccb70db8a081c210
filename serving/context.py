"""The context of a tool call, through which handlers read everything outside their arguments."""

import re
from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple

from access.keys_and_quota import Caller
from schemas.coverage import Coverage
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.vocabulary import (
    UNIVERSE_RETENTION_MS,
    Clock,
    Mode,
    format_instant,
)
from serving.argument_values import parse_instant_ms
from serving.arguments import ArgumentError, Problem, quote_value
from serving.snapshot import Snapshot
from serving.snapshot_cache import SnapshotCache

if TYPE_CHECKING:  # So that client commands such as `signals stdio` do not import NumPy.
    from serving.prices import Prices

DATE_PATTERN = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Context(NamedTuple):
    """Snapshots, public addresses, the wall clock (epoch ms), billing mode, caller and operator.

    `caller` is None if the call needs no key. `prices` is None if the operator does not show the
    prices of the source.
    """

    snapshots: SnapshotCache
    base_url: str
    docs_url: str
    clock: Clock
    mode: Mode | None
    daily_limit: int
    caller: Caller | None = None
    operator: Operator = UNNAMED_OPERATOR
    prices: "Prices | None" = None

    @property
    def sells_keys(self) -> bool:
        """Whether keys can be bought; with billing off, the operator creates them."""
        return self.mode is not None

    async def snapshot(self) -> Snapshot:
        """Return the latest snapshot; NotBuiltError until the first start has built the history."""
        snapshot = await self.snapshots.snapshot()
        if snapshot is None:
            raise await self.snapshots.explain_missing()
        return snapshot

    async def coverage(self) -> Coverage:
        """Return the published coverage; NotBuiltError before the first run."""
        # Without any coverage there is no snapshot either, which raises the error.
        return await self.snapshots.coverage() or (await self.snapshot()).coverage

    async def snapshot_at(self, as_of: str | None) -> tuple[Snapshot, int]:
        """Return the snapshot served at an instant, by default the latest, and its time (epoch ms).

        ArgumentError if the instant is malformed or outside the stored history.
        """
        latest = await self.snapshot()
        if as_of is None:
            return latest, self.clock()
        at = self.parse_as_of(as_of, latest)
        snapshot = await self.snapshots.snapshot_at(at)
        if snapshot is None:
            raise self._outside_history_error(as_of, latest)
        return snapshot, at

    def explain_date(self, as_of: str | None) -> list[str]:
        """Return a note on an `as_of` that is a date alone, none for others."""
        if as_of is None or not DATE_PATTERN.fullmatch(as_of.strip()):
            return []
        after = date.fromisoformat(as_of.strip()) + timedelta(days=1)
        return [f"as_of means {as_of.strip()}T00:00Z; for the end of that day give {after}."]

    def parse_as_of(self, as_of: str, latest: Snapshot) -> int:
        """Return an instant of the stored history as epoch ms; ArgumentError if it is not one."""
        at = parse_instant_ms("as_of", as_of)
        first, last = self.find_history_bounds(latest)
        if not first <= at <= last:
            raise self._outside_history_error(as_of, latest)
        return at

    def find_history_bounds(self, latest: Snapshot) -> tuple[int, int]:
        """Return the first and the last `as_of` that is accepted, in epoch ms."""
        # A recording's market time can be ahead of the wall clock, so "now" is the later of both.
        # No time passes in the sample.
        now = latest.newest_at if latest.stored.is_sample else self.clock()
        return find_history_start(latest), max(now, latest.newest_at)

    def _outside_history_error(self, as_of: str, latest: Snapshot) -> ArgumentError:
        first, last = self.find_history_bounds(latest)
        return ArgumentError(
            Problem(
                "as_of",
                f"as_of: {quote_value(as_of)} is outside the stored history; accepted: "
                f"{format_instant(first)} to now ({format_instant(last)}); omit it for the current "
                "readings",
            )
        )


def find_history_start(snapshot: Snapshot) -> int:
    """Return the earliest time (epoch ms) for which a past snapshot can still be rebuilt."""
    retained_from = snapshot.market_time - UNIVERSE_RETENTION_MS
    return max(snapshot.stored.history_starts_at or snapshot.newest_at, retained_from)
