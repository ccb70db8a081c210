"""The operations page, on which the owner sees how the service is doing and revokes keys.

Everything comes from the stores, so any serving process shows the same. The checks that take long
run in the background, and their findings are stored for all processes.
"""

import asyncio
import json
import platform
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.keys_and_quota import MAX_LABEL_CHARS, create_operator_key
from access.maintenance import CALL_RETENTION_DAYS
from access.single_flight_cache import SingleFlightCache
from schemas.coverage import CoveredAsset
from schemas.errors import ApiError, describe_failure, invalid_parameter_error
from schemas.version import VERSION
from schemas.vocabulary import ALERTS_RETENTION_MS, DAY_MS, HOUR_MS, UNIVERSE_RETENTION_MS
from serving.context import Context
from serving.freshness import find_next_run, is_final, is_recording_over, is_stale
from serving.snapshot import Snapshot
from serving.tool_runner import ToolRunner
from store.access_rows import KeyRow, Notice
from store.sql.access_store import AccessStore
from store.sql.operations_figures import CommitSummary, StoreSize
from store.store_errors import StoreError
from web.api_access import CHART_DAYS, build_usage_chart, parse_id
from web.buy_pages import build_key_values
from web.pages import build_page_route, redirect_to, render_page
from web.sessions import Form, Sessions, Viewer

# A run that ends later was not due at its minute :03: the service was down, or computes its past.
CATCH_UP_MS = 600_000


def group_runs(commits: Sequence[CommitSummary]) -> list[dict[str, Any]]:
    """Return the hourly runs of some commits; both are newest first.

    `hours` are those that a run covers. `duration` is the time from minute :03 to the first commit,
    None if the run was computed afterwards; `late` that to the last one, if late bars made another.
    Runs side by side that were computed afterwards are one: from `first` to `at`, `runs` of them.
    """
    groups = [list(group) for _, group in groupby(commits, attrgetter("market_time"))]
    runs: list[dict[str, Any]] = []
    for group, before in zip(groups, [*groups, None][1:], strict=True):
        at, duration = group[0].market_time, _describe_delay(group[-1])
        run: dict[str, Any] = {
            "at": at,
            "first": at,
            "runs": 1,
            "hours": None if before is None else (at - before[0].market_time) // HOUR_MS,
            "duration": duration,
            "late": _describe_delay(group[0]) if len(group) > 1 else None,
            "changes": sum(commit.changes for commit in group),
            "alerts": sum(commit.alerts for commit in group),
        }
        if runs and duration is None and runs[-1]["duration"] is None:
            newer = runs.pop()
            sums = {name: newer[name] + run[name] for name in ("runs", "changes", "alerts")}
            hours = newer["hours"] + (run["hours"] or 0)
            run = {**newer, **sums, "first": at, "hours": hours}
        runs.append(run)
    return runs


def _describe_delay(commit: CommitSummary) -> str | None:
    delay_ms = -1 if commit.written_at is None else commit.written_at - commit.market_time
    if not 0 <= delay_ms < CATCH_UP_MS:
        return None
    minutes, rest_ms = divmod(delay_ms, 60_000)
    return f"{minutes} min {rest_ms // 1000} s" if minutes else f"{rest_ms / 1000:.1f} s"


def format_bytes(count: int) -> str:
    """Return a size in binary units."""
    if count < 2**20:
        return f"{count / 2**10:.0f} KiB"
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"


def list_venues(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the health of each venue that supplies assets, largest first.

    `newest` and `oldest` are the closes (epoch ms) of its assets' newest bars, `missing` is the
    number of bars that their history lacks. All assets late is a failure, some late a warning.
    """
    stored, by_venue = snapshot.stored, dict[str, set[str]]()
    for asset in snapshot.coverage.tracked:
        if asset.timeframes:
            by_venue.setdefault(name_venue(snapshot, asset), set()).add(asset.ticker)
    venues = []
    for name, tickers in by_venue.items():
        closes = [1000 * at for ticker, at in stored.last_closes.items() if ticker in tickers]
        late = len(tickers.intersection(stored.late))
        missing = [bars for ticker, bars in stored.missing_bars.items() if ticker in tickers]
        venues.append(
            {
                "name": name,
                "grade": "ok" if not late else "fix" if late == len(tickers) else "warn",
                "assets": len(tickers),
                "late": late,
                "building": len(tickers.intersection(snapshot.building_tickers)),
                "missing": sum(missing),
                "newest": max(closes, default=None),
                "oldest": min(closes, default=None),
            }
        )
    return sorted(venues, key=lambda venue: (-len(by_venue[venue["name"]]), venue["name"]))


def name_venue(snapshot: Snapshot, asset: CoveredAsset) -> str:
    """Return the venue of an asset's bars, or the kind of source if that has no venues."""
    return (asset.listing or snapshot.coverage.source).partition(" ")[0]


def list_troubles(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the assets whose bars are late, missing or still being built, late ones first."""
    stored, troubles = snapshot.stored, []
    for asset in snapshot.coverage.tracked:
        ticker, missing = asset.ticker, stored.missing_bars.get(asset.ticker, 0)
        # The ranks are in the order of the page.
        is_building = ticker in snapshot.building_tickers
        rank = 0 if ticker in stored.late else 1 if is_building else 2 if missing else None
        if rank is not None:
            trouble = {
                "ticker": ticker,
                "venue": name_venue(snapshot, asset),
                "state": ("late", "building", "holes")[rank],
                "last_close": 1000 * stored.last_closes.get(ticker, 0),
                "missing": missing,
            }
            troubles.append((rank, -missing, ticker, trouble))
    return [trouble for *_, trouble in sorted(troubles)]


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


OPERATIONS_PATH = "operations"
KEY_PATH = f"/{OPERATIONS_PATH}/keys/{{key}}/revoke"
RUNS_SHOWN, COMMITS_READ = 12, 60
SALES_WINDOW_DAYS = 30
# The names of the stored notices: when all checks were begun, and what the last ones found.
BEGUN_NOTICE, FINDINGS_NOTICE = "doctor-begun", "doctor-findings"
# Checks that have not ended by then died with their process.
MAX_CHECKS_MS = 180_000

# The grade (ok, warn or fix), subject and text of a check.
Finding = tuple[str, str, str]

log = structlog.get_logger("operations")


@dataclass(frozen=True, slots=True)
class Doctor:
    """The checks of `signals doctor`: those that are quick, and all of them."""

    run_quick_checks: Callable[[Snapshot | None], Awaitable[Sequence[Finding]]]
    run_all_checks: Callable[[], Awaitable[Sequence[Finding]]]


def build_operations_routes(
    access: AccessStore,
    sessions: Sessions,
    runner: ToolRunner,
    doctor: Doctor | None,
) -> list[Route]:
    """Return the routes of the page and its forms; without a `doctor` it shows no checks."""
    pages = OperationsPages(access, runner.context, doctor)
    path = f"/{OPERATIONS_PATH}"
    forms = {
        f"{path}/checks": pages.begin_checks,
        f"{path}/keys": pages.create_key,
        KEY_PATH: pages.revoke_key,
    }
    fields = {"label": MAX_LABEL_CHARS}
    return [
        *(
            build_page_route(shown, runner, sessions.require_viewer(respond, is_owners=True))
            for shown, respond in ((path, pages.show), (KEY_PATH, pages.confirm_revoke))
        ),
        *(
            build_page_route(
                form, runner, sessions.require_form(respond, fields, is_owners=True), "POST"
            )
            for form, respond in forms.items()
        ),
    ]


class OperationsPages:
    """The page and its forms."""

    def __init__(self, access: AccessStore, context: Context, doctor: Doctor | None) -> None:
        self._access = access
        self._market = context.snapshots.store
        self._context = context
        self._doctor = doctor
        # Counting the rows of a year takes a second.
        self._sizes = SingleFlightCache[list[StoreSize]](context.clock, lambda sizes: 60_000)
        self._checks: set[asyncio.Task[None]] = set()

    async def show(self, request: Request, viewer: Viewer) -> Response:
        """Show everything."""

        async def measure() -> list[StoreSize]:
            stores = self._market, self._access
            return [await store.operations.measure() for store in stores]

        snapshot, now = await self._context.snapshots.snapshot(), self._context.clock()
        operations, day = self._access.operations, now // DAY_MS
        usage = await self._access.list_tool_usage(None, day - CHART_DAYS + 1)
        plans = await operations.count_memberships(now - SALES_WINDOW_DAYS * DAY_MS)
        commits, keys, key_counts, sizes, sales, checks = await asyncio.gather(
            self._market.operations.list_commits(COMMITS_READ),
            operations.list_keys(day, 50),
            operations.count_keys(now),
            self._sizes.get("sizes", measure),
            operations.list_memberships(20),
            self._build_check_values(snapshot, now),
        )
        response = render_page(
            request,
            "operations.html",
            title="Operations",
            here=OPERATIONS_PATH,
            is_wide=True,
            viewer=viewer,
            now=now,
            runs=group_runs(commits)[:RUNS_SHOWN],
            chart=build_usage_chart(usage, now),
            max_label_chars=MAX_LABEL_CHARS,
            keys=keys,
            key_counts=key_counts,
            plans=plans,
            daily_limit=self._context.daily_limit,
            sales=sales,
            sales_days=SALES_WINDOW_DAYS,
            sizes=list(zip(("Market data", "Keys and sales"), sizes, strict=True)),
            retention_days=[
                ("Changes", UNIVERSE_RETENTION_MS // DAY_MS),
                ("Alerts", ALERTS_RETENTION_MS // DAY_MS),
                ("Calls", CALL_RETENTION_DAYS),
            ],
            format_bytes=format_bytes,
            software=[f"Signals {VERSION}", f"Python {platform.python_version()}"],
            billing=self._context.mode or "off",
            **build_data_values(snapshot, now),
            **checks,
        )
        if checks["is_checking"]:
            response.headers["Refresh"] = "4"
        return response

    async def begin_checks(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Run all checks in the background, unless they run already, and return to the page."""
        notices, now = await self._load_notices(), self._context.clock()
        if self._doctor is not None and not _is_checking(notices, now):
            await self._access.put_notice(Notice(BEGUN_NOTICE, "", now))
            task = asyncio.create_task(self._run_checks(self._doctor))
            # The event loop holds only a weak reference to a task.
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)
        return redirect_to(request, f"{OPERATIONS_PATH}#checks")

    async def create_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Create a key of the operator and show it in the response to the form."""
        try:
            api_key = await create_operator_key(
                self._access, self._context.clock(), form.get("label", "").strip()
            )
        except ValueError as error:
            raise invalid_parameter_error(f"label: {error}.") from None
        return render_page(
            request,
            "new_key.html",
            status=201,
            title="Your new key",
            here=OPERATIONS_PATH,
            is_wide=True,
            viewer=viewer,
            back="Operations",
            **build_key_values(api_key, self._context.base_url),
        )

    async def confirm_revoke(self, request: Request, viewer: Viewer) -> Response:
        """Ask the owner to confirm that a key is to be revoked."""
        return render_page(
            request,
            "revoke_key.html",
            title="Revoke this key?",
            here=OPERATIONS_PATH,
            is_wide=True,
            viewer=viewer,
            live_key=await self._get_key(request),
        )

    async def revoke_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Revoke a key and return to the page."""
        held = await self._get_key(request)
        await self._access.revoke_key(held.id, self._context.clock())
        return redirect_to(request, f"{OPERATIONS_PATH}#keys")

    async def _get_key(self, request: Request) -> KeyRow:
        now, id_ = self._context.clock(), parse_id(request, "key")
        held = await self._access.operations.find_key(id_, now // DAY_MS)
        if held is None or not held.works_at(now):
            raise ApiError(
                "invalid_parameter",
                "There is no working key with this id. Open Operations to see the keys.",
                404,
            )
        return held

    async def _build_check_values(self, snapshot: Snapshot | None, now: int) -> dict[str, Any]:
        """Return the findings of the quick checks now, and of the last run of all checks."""
        if self._doctor is None:
            return {"findings": [], "grades": {}, "checked_at": None, "is_checking": False}
        quick, notices = await asyncio.gather(
            self._doctor.run_quick_checks(snapshot), self._load_notices()
        )
        stored = notices.get(FINDINGS_NOTICE)
        # All checks include the quick ones, whose findings of this moment are newer.
        subjects = {subject for _, subject, _ in quick}
        found: list[Finding] = [] if stored is None else list(map(tuple, json.loads(stored.detail)))
        findings = [*quick, *(one for one in found if one[1] not in subjects)]
        return {
            "findings": findings,
            "grades": Counter(grade for grade, _, _ in findings),
            "checked_at": None if stored is None else stored.at,
            "is_checking": _is_checking(notices, now),
        }

    async def _run_checks(self, doctor: Doctor) -> None:
        findings: Sequence[Finding]
        try:
            findings = await doctor.run_all_checks()
        except Exception as error:
            log.error("checks_failed", **describe_failure(error))
            findings = [("fix", "doctor", "the checks failed: see the log of the service")]
        try:
            notice = Notice(FINDINGS_NOTICE, json.dumps(findings), self._context.clock())
            await self._access.put_notice(notice)
        except StoreError as error:
            log.error("findings_not_stored", **describe_failure(error))

    async def _load_notices(self) -> dict[str, Notice]:
        return {notice.name: notice for notice in await self._access.list_notices()}


def _is_checking(notices: dict[str, Notice], now: int) -> bool:
    """Return whether checks were begun and have neither ended nor died by now."""
    begun, ended = notices.get(BEGUN_NOTICE), notices.get(FINDINGS_NOTICE)
    if begun is None or (ended is not None and ended.at >= begun.at):
        return False
    return now - begun.at < MAX_CHECKS_MS
