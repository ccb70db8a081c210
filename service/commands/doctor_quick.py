"""The doctor's checks that are quick, and need neither the network nor the compute side.

The operations page runs them in serving processes, on the stores that those hold open.
"""

import asyncio
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from access.oauth.parameters import can_serve_oauth
from schemas.vocabulary import DAY_MS, Clock, format_instant
from service.commands.console import Finding, format_names, parse_finding
from service.config.settings import PREFIX, Settings
from serving.forwarded_for import NOTICE_NAME
from serving.freshness import is_ahead, is_final, is_stale
from serving.snapshot import Snapshot
from store.sql.access_store import AccessStore

if TYPE_CHECKING:
    from store.sql.market_store import MarketStore
    from web.operations import Doctor


WARN_FREE_BYTES, MIN_FREE_BYTES = 2 * 2**30, 2**28
COMMAND = (
    sys.executable,
    "-c",
    "from service.commands.cli import main; raise SystemExit(main())",
    "doctor",
)
# Less than the time after which the page takes the checks for dead.
TIMEOUT_S = 150.0


async def run_quick_checks(
    settings: Settings,
    snapshot: Snapshot | None,
    market: "MarketStore",
    store: AccessStore,
    now: int,
) -> list[Finding]:
    """Return the findings on settings, runs, log, disk, billing settings and proxies."""
    findings = [
        *check_settings(settings),
        check_last_run(snapshot, now),
        await check_log(settings, market),
    ]
    if settings.is_sqlite:
        findings.append(check_disk(settings.market_path))
    findings += check_billing_settings(settings)
    return [*findings, *await check_memberships(settings, store), await check_proxies(store, now)]


def check_settings(settings: Settings) -> Iterator[Finding]:
    """Name the settings that are set, and check the public address."""
    set_variables = ", ".join(sorted(PREFIX + name.upper() for name in settings.model_fields_set))
    yield Finding(
        "ok",
        "settings",
        f"{set_variables or 'all by default'}; served at {settings.address}; "
        f"logs from level {settings.log_level}",
    )
    if settings.address_hint is not None:
        yield Finding("warn", "settings", settings.address_hint)
    if not can_serve_oauth(settings.address):
        yield Finding(
            "warn",
            "oauth",
            "off, because tokens must not cross a network unencrypted: serve over https and set "
            "SIGNALS_BASE_URL to that address; clients with an API key need no OAuth",
        )


def check_last_run(snapshot: Snapshot | None, now: int) -> Finding:
    """Check that the newest run is there, and that it has the bars of all assets."""
    if snapshot is None:
        text = "there is no history yet: start `signals serve`, or wait while it builds one"
        return Finding("warn", "runs", text)
    age, ran_at = _format_age(now - snapshot.market_time), format_instant(snapshot.market_time)
    last_run = f"the last run was {age} ago ({ran_at})"
    if is_final(snapshot):
        return Finding("ok", "runs", f"{last_run}; the recording is complete")
    if is_ahead(snapshot, now):
        text = (
            f"the last run is dated {ran_at}, in the future: correct the clock of this machine; if "
            "it is right, nothing is computed until then, so restore a backup"
        )
        return Finding("warn", "runs", text)
    if is_stale(snapshot, now):
        return Finding("warn", "runs", f"{last_run}: start `signals serve` or `signals compute`")
    if building := snapshot.building_tickers:
        text = f"{last_run}; the history of {len(building)} assets is still being built"
        return Finding("warn", "runs", f"{text} ({format_names(building)})")
    if late := snapshot.stored.late:
        text = f"{last_run}; bars of {len(late)} assets are late ({format_names(list(late))})"
        return Finding("warn", "runs", text)
    return Finding("ok", "runs", last_run)


async def check_log(settings: Settings, market: "MarketStore") -> Finding:
    """Check that the newest rows of the feed are signed, and cosigned if there are witnesses."""
    checkpoint = await market.feed_log.checkpoint()
    if checkpoint.refusal is not None:
        text = (
            f"no new rows are signed: {checkpoint.refusal}; restore a newer copy of the database, "
            "or the key file; if there is none, stop the service and run `signals log restart`"
        )
        return Finding("fix", "log", text)
    if checkpoint.note is None:
        text = "the feed is not signed yet: the first run of `signals serve` signs it"
        return Finding("warn", "log", text)
    text = f"{checkpoint.size} rows of the feed are signed"
    if settings.witness_policy is None:
        return Finding("ok", "log", text)
    # The first signature is the log's own.
    cosigned = checkpoint.note.count("\n— ") - 1
    text += f", and cosigned by {cosigned} witnesses"
    return Finding("ok" if cosigned else "warn", "log", text)


def check_billing_settings(settings: Settings) -> Iterator[Finding]:
    """Check what Stripe and buyers need: a webhook secret, a public address, a known seller."""
    if settings.billing == "sandbox" and not settings.is_local:
        text = "sandbox gives a key to anyone who reaches this service"
        yield Finding("warn", "billing", text)
    if settings.billing != "stripe":
        return
    yield Finding("ok", "billing", "SIGNALS_STRIPE_WEBHOOK_SECRET is set")
    if settings.base_url is None or not settings.base_url.startswith("https://"):
        text = (
            "SIGNALS_BASE_URL is not a public https:// address: Stripe cannot send webhooks, and "
            "buyers do not return from its pay page"
        )
        yield Finding("warn", "billing", text)
    yield _check_operator(settings)


def _check_operator(settings: Settings) -> Finding:
    """Check that buyers see whom they pay, on what terms, and how to reach them."""
    names = ("operator_name", "operator_contact", "terms_url", "privacy_url")
    missing = [PREFIX + name.upper() for name in names if getattr(settings, name) is None]
    if not missing:
        return Finding("ok", "operator", f"{settings.operator_name}, {settings.operator_contact}")
    text = f"buyers do not see whom they pay and on what terms: set {', '.join(missing)}"
    return Finding("warn", "operator", text)


async def check_memberships(settings: Settings, store: AccessStore) -> list[Finding]:
    """Name the subscriptions that give no access but can still be charged."""
    if settings.billing != "stripe":
        return []
    mode = "live" if settings.is_stripe_live else "test"
    charged = [
        membership.row.subscription
        for membership in await store.list_open_memberships("stripe")
        if membership.ended_at is not None and membership.row.mode == mode
    ]
    if not charged:
        return []
    text = (
        f"{len(charged)} members have no access, but Stripe may still charge them "
        f"({format_names(charged)}): settle or cancel these subscriptions"
    )
    return [Finding("warn", "billing", text)]


async def check_proxies(store: AccessStore, now: int) -> Finding:
    """Check that no unknown proxy forwarded requests in the last day."""
    last_notice = {notice.name: notice for notice in await store.list_notices()}.get(NOTICE_NAME)
    if last_notice is None or now - last_notice.at > DAY_MS:
        return Finding("ok", "proxies", "no unknown proxy sent X-Forwarded-For in the last day")
    text = (
        f"{last_notice.detail} sends X-Forwarded-For but is not in SIGNALS_TRUSTED_PROXIES, so all "
        "clients behind it share one throttle: if it is your proxy, add it"
    )
    return Finding("warn", "proxies", text)


def _format_age(ms: int) -> str:
    hours, minutes = divmod(max(ms, 0) // 60_000, 60)
    if hours < 2:
        return f"{60 * hours + minutes} minutes"
    return f"{hours} hours" if hours < 48 else f"{hours // 24} days"


def check_disk(path: Path) -> Finding:
    """Check the free space at a file's folder."""
    if not path.parent.is_dir():
        return Finding("fix", "disk", f"there is no folder {path.parent}")
    free = shutil.disk_usage(path.parent).free
    text = f"{free / 2**30:.1f} GiB are free at {path.parent.absolute()}"
    if free < MIN_FREE_BYTES:
        return Finding("fix", "disk", f"{text}: free some space, because without it all calls fail")
    return Finding("warn" if free < WARN_FREE_BYTES else "ok", "disk", text)


def build_doctor(
    settings: Settings, market: "MarketStore", access: AccessStore, clock: Clock
) -> "Doctor":
    """Return the checks of a service with these settings, for the operations page."""
    # Only the page needs it, not the command.
    from web.operations import Doctor

    async def check_quickly(snapshot: Snapshot | None) -> list[Finding]:
        return await run_quick_checks(settings, snapshot, market, access, clock())

    return Doctor(check_quickly, partial(run_doctor_process, TIMEOUT_S))


async def run_doctor_process(timeout_s: float) -> list[Finding]:
    """Return the findings of all checks, which run in a process of their own.

    The command checks the bars with the compute side, which serving processes do not load, reads
    whole files, and configures logs. In its own process it delays no call. It reads the same
    environment, and so the same settings, as this one did.
    """
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    except TimeoutError:
        text = f"the checks took longer than {timeout_s:g} s: run `signals doctor` in a shell"
        return [Finding("warn", "doctor", text)]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    findings = [parse_finding(line) for line in output.decode(errors="replace").splitlines()]
    found = [finding for finding in findings if finding is not None]
    if process.returncode not in (0, 1) or not found:
        last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
        found.append(Finding("fix", "doctor", last_line or "the checks ended without findings"))
    return found
