"""The values of the operations page: runs, health of sources, sales and sizes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

from access.billing.provider import SubscriptionStatus
from schemas.coverage import CoveredAsset
from schemas.vocabulary import HOUR_MS
from serving.freshness import find_next_run, is_final, is_recording_over, is_stale
from serving.snapshot import Snapshot
from store.access_rows import StoredMembership
from store.sql.operations import CommitSummary

# A run that ends later was not due at its minute :03: the service was down, or computes its past.
CATCH_UP_MS = 600_000
MINUTE_MS = 60_000
Grade = Literal["ok", "warn", "fix"]


@dataclass(frozen=True, slots=True)
class Run:
    """The commits of one hourly run: its time, the hours it covers, and its published rows.

    `duration` is the text of the time from minute :03 to the first commit, None if the run was
    computed afterwards; `late` is that to the last commit, if late bars made another one.
    """

    at: int
    hours: int | None
    duration: str | None
    late: str | None
    changes: int
    alerts: int


def group_runs(commits: Sequence[CommitSummary], limit: int) -> list[Run]:
    """Return the newest runs, newest first; `commits` are newest first."""
    groups = [list(group) for _, group in groupby(commits, attrgetter("market_time"))]
    runs = []
    for group, before in zip(groups, [*groups, None][1:], strict=True):
        at, first, last = group[0].market_time, group[-1], group[0]
        runs.append(
            Run(
                at=at,
                hours=None if before is None else (at - before[0].market_time) // HOUR_MS,
                duration=_describe_delay(first),
                late=_describe_delay(last) if len(group) > 1 else None,
                changes=sum(commit.changes for commit in group),
                alerts=sum(commit.alerts for commit in group),
            )
        )
    return runs[:limit]


def _describe_delay(commit: CommitSummary) -> str | None:
    if commit.written_at is None:
        return None
    delay_ms = commit.written_at - commit.market_time
    return format_duration(delay_ms) if 0 <= delay_ms < CATCH_UP_MS else None


def format_duration(ms: int) -> str:
    """Return a duration in seconds, from a minute on in minutes and seconds."""
    if ms < MINUTE_MS:
        return f"{ms / 1000:.1f} s"
    minutes, rest_ms = divmod(ms, MINUTE_MS)
    return f"{minutes} min {rest_ms // 1000} s"


def format_bytes(count: int) -> str:
    """Return a size in binary units."""
    if count < 2**20:
        return f"{count / 2**10:.0f} KiB"
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"


@dataclass(frozen=True, slots=True)
class VenueHealth:
    """The assets that a venue supplies, and how many of them are late or being built.

    `newest` and `oldest` are the closes (epoch ms) of their newest bars, `missing` the number of
    bars that their history lacks.
    """

    name: str
    assets: int
    late: int
    building: int
    missing: int
    newest: int | None
    oldest: int | None

    @property
    def grade(self) -> Grade:
        """Whether the venue delivers: all late is a failure, some late a warning."""
        if self.late == 0:
            return "ok"
        return "fix" if self.late == self.assets else "warn"


def list_venues(snapshot: Snapshot) -> list[VenueHealth]:
    """Return the health of each venue that supplies assets, largest first."""
    by_venue: dict[str, list[CoveredAsset]] = {}
    for asset in snapshot.coverage.tracked:
        if asset.timeframes:
            by_venue.setdefault(name_venue(snapshot, asset), []).append(asset)
    venues = [_judge_venue(snapshot, name, assets) for name, assets in by_venue.items()]
    return sorted(venues, key=lambda venue: (-venue.assets, venue.name))


def name_venue(snapshot: Snapshot, asset: CoveredAsset) -> str:
    """Return the venue of an asset's bars, or the kind of source if that has no venues."""
    return (asset.listing or snapshot.coverage.source).partition(" ")[0]


def _judge_venue(snapshot: Snapshot, name: str, assets: list[CoveredAsset]) -> VenueHealth:
    tickers, stored = {asset.ticker for asset in assets}, snapshot.stored
    closes = [1000 * at for ticker, at in stored.last_closes.items() if ticker in tickers]
    return VenueHealth(
        name=name,
        assets=len(assets),
        late=len(tickers.intersection(stored.late)),
        building=len(tickers.intersection(snapshot.building_tickers)),
        missing=sum(count for ticker, count in stored.missing_bars.items() if ticker in tickers),
        newest=max(closes, default=None),
        oldest=min(closes, default=None),
    )


@dataclass(frozen=True, slots=True)
class Trouble:
    """An asset whose bars are late, missing, or still being built; `last_close` is epoch ms."""

    ticker: str
    venue: str
    state: str
    last_close: int | None
    missing: int


def list_troubles(snapshot: Snapshot) -> list[Trouble]:
    """Return the assets that an operator may look into, late ones first."""
    stored = snapshot.stored
    late, building = set(stored.late), set(snapshot.building_tickers)

    def build_troubles() -> Iterator[Trouble]:
        for asset in snapshot.coverage.tracked:
            ticker = asset.ticker
            missing = stored.missing_bars.get(ticker, 0)
            if ticker in late or ticker in building or missing:
                state = "late" if ticker in late else "building" if ticker in building else "holes"
                close = stored.last_closes.get(ticker)
                venue = name_venue(snapshot, asset)
                yield Trouble(
                    ticker, venue, state, None if close is None else 1000 * close, missing
                )

    order = {"late": 0, "building": 1, "holes": 2}
    return sorted(build_troubles(), key=lambda one: (order[one.state], -one.missing, one.ticker))


def build_data_values(snapshot: Snapshot | None, now: int) -> dict[str, Any]:
    """Return the values of the page that depend on the snapshot, if there is one."""
    if snapshot is None:
        return {"state": "nothing computed", "state_grade": "warn", "source": None}
    covered = [asset for asset in snapshot.coverage.tracked if asset.timeframes]
    stale = is_stale(snapshot, now)
    return {
        "state": "complete" if is_recording_over(snapshot) else "stale" if stale else "fresh",
        "state_grade": "fix" if stale else "ok",
        "source": snapshot.coverage.source,
        "last_run": snapshot.market_time,
        "next_run": None if is_final(snapshot) else find_next_run("1h", snapshot.market_time),
        "asset_count": len(covered),
        "uncovered_count": len(snapshot.coverage.tracked) - len(covered),
        "venues": list_venues(snapshot),
        "troubles": list_troubles(snapshot),
    }


@dataclass(frozen=True, slots=True)
class Sale:
    """A membership and its state; `status` is the payment processor's, if it was requested."""

    membership: StoredMembership
    status: SubscriptionStatus | None

    @property
    def state(self) -> str:
        """The state in a word or two."""
        if self.membership.ended_at is not None:
            return "ended" if self.membership.closed_at is not None else "no access"
        if self.status is None:
            return "active"
        if self.status.ended_reason is not None:
            return "ended"
        if self.status.due_reason is not None:
            return "payment due"
        return "cancelled" if self.status.ends_at is not None else "active"


def count_grades(findings: Sequence[tuple[str, str, str]]) -> Counter[str]:
    """Return how many findings have each grade."""
    return Counter(grade for grade, _, _ in findings)
