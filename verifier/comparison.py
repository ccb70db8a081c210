"""Compares rows that were verified before with the rows that the service serves now. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from verifier.canonical import COVERED, Row
from verifier.record import RecordedRow
from verifier.times import parse_served_time

# The service may serve rows this long after it last computed, so their age is uncertain by it.
AGE_MARGIN = timedelta(days=1)
RETENTION = {"universe": timedelta(days=365), "alerts": timedelta(days=90)}
SHORTEST_RETENTION = min(RETENTION.values())


def is_kept(created_at: str, tier: str | None, now: datetime) -> bool:
    """Return whether a row must still be served, by the retention of its tier.

    Without a tier, return whether a row of either tier must.
    """
    retention = RETENTION.get(tier or "", SHORTEST_RETENTION)
    return parse_served_time(created_at) > now - retention + AGE_MARGIN


def describe_changes(before: Row, now: Row) -> list[str]:
    """Return each covered member that differs, such as `price was 1.5, is 2`."""
    return [
        f"{name} was {_format(before[name])}, is {_format(now[name])}"
        for name in COVERED
        if _format(before[name]) != _format(now[name])
    ]


def _format(value: object) -> str:
    """Return a value as JSON, equal for numbers that are equal as JSON numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    return json.dumps(value, sort_keys=True)


def compare_rows(
    recorded: Iterable[RecordedRow], served: Mapping[str, Row], now: datetime
) -> Iterator[tuple[RecordedRow, str]]:
    """Yield each recorded row that is no longer served as it was, and the difference.

    `served` are the rows by id. Rows that may have aged out are not expected.
    """
    for one in recorded:
        row = served.get(one.id)
        if row is None:
            if is_kept(one.created_at, str(one.row["tier"]), now):
                yield one, f"{one.id} of {one.created_at} was deleted: the feed no longer has it"
        # Most rows are equal, and comparing their texts would take most of the time.
        elif row != one.row and (changes := describe_changes(one.row, row)):
            yield one, f"{one.id}: {'; '.join(changes)}"
