"""`signals doctor`: health checks, each graded ok, warn (look at it) or fix (act on it).

It changes nothing: it neither creates a missing store nor migrates an old one. The operations page
runs the quick checks in serving processes, which load no module of the compute side.
"""

import asyncio
import logging
import os
import shutil
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

import structlog
from pydantic import SecretStr

from access.billing.provider import BillingError, BillingSetupError
from access.mail import MailError
from access.oauth.parameters import can_serve_oauth
from schemas.vocabulary import DAY_MS, Clock, format_instant
from service.commands.console import Finding, Grade, format_finding, format_names, parse_finding
from service.config.providers import find_outage_reason, open_mailer, open_provider
from service.config.settings import PREFIX, Settings, SettingsError
from service.config.stores import (
    ADOPT_HINT,
    BACKUP_FAILED_NOTICE,
    BACKUP_NOTICE,
    IS_ANOTHER,
    MAIL_NOTICE,
    RESTORE_HINT,
    WEBHOOK_NOTICE,
    StoreKind,
    count_pending_migrations,
    describe_lost_keys,
    describe_remote_file_system,
    get_location,
    get_path,
    has_other_market,
    has_store,
    open_access,
    open_market,
)
from serving.forwarded_for import NOTICE_NAME
from serving.freshness import is_ahead, is_final, is_stale
from serving.prices import decide_prices
from serving.snapshot import Snapshot, build_snapshot
from store.sql.access_store import AccessStore
from store.store_errors import StoreError

if TYPE_CHECKING:
    from store.sql.market_store import MarketStore
    from web.operations import Doctor

SQLITE_MAGIC = b"SQLite format 3\0"
RESTORE_MARKET_HINT = "restore a backup, or run `signals log restart` to begin a new history"
CONNECTION_HINT = "set SIGNALS_DATABASE_URL to a database that exists and accepts this user"
WARN_FREE_BYTES, MIN_FREE_BYTES = 2 * 2**30, 2**28
COMMAND = (
    sys.executable,
    "-c",
    "from service.commands.cli import main; raise SystemExit(main())",
    "doctor",
)
NOTICE_HINTS = {
    WEBHOOK_NOTICE: "if it came from Stripe, correct SIGNALS_STRIPE_WEBHOOK_SECRET",
    MAIL_NOTICE: "check SIGNALS_SMTP_URL, and send the link again",
}
# Less than the time after which the page takes the checks for dead.
TIMEOUT_S = 150.0


@dataclass
class Case:
    """The service that is checked, and its stores, which `stack` closes."""

    settings: Settings
    clock: Clock
    stack: AsyncExitStack
    snapshot: Snapshot | None = None
    # None if there is none that can be read; the store of keys is then an empty one.
    market: "MarketStore | None" = None
    access: AccessStore = field(init=False)
    has_provider: bool = True


# A grade and a text of the check's own name, or a finding of another name.
Findings = AsyncIterator[tuple[Grade, str] | Finding]


class Check(NamedTuple):
    """A check of a case to which it applies; the quick ones need no network."""

    name: str
    applies: Callable[[Case], bool]
    find: Callable[[Case], Findings]
    is_quick: bool = False


async def run_doctor(settings: Settings, clock: Clock, universe: bool = False) -> int:
    """Print one line per finding; return 1 if something must be fixed.

    With `universe`, check each listing of the universe file instead of the service.
    """
    # Findings report the same problems that a source would log.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    has_failed = False
    async with AsyncExitStack() as stack:
        findings = run_checks(Case(settings, clock, stack))
        if universe:
            from service.commands.doctor_venues import check_universe

            findings = check_universe(settings, clock)
        async for finding in findings:
            print(format_finding(finding))
            has_failed |= finding.grade == "fix"
    return 1 if has_failed else 0


async def run_checks(case: Case, *, only_quick: bool = False) -> AsyncIterator[Finding]:
    """Yield the findings of the checks that apply, in the order of the table."""
    for check in CHECKS:
        if (check.is_quick or not only_quick) and check.applies(case):
            async for found in check.find(case):
                yield (
                    found if isinstance(found, Finding) else Finding(found[0], check.name, found[1])
                )


def build_doctor(
    settings: Settings, market: "MarketStore", access: AccessStore, clock: Clock
) -> "Doctor":
    """Return the checks of a service with these settings, for the operations page."""
    # Only the page needs it, not the command.
    from web.operations import Doctor

    async def run_quick_checks(snapshot: Snapshot | None) -> list[Finding]:
        case = Case(settings, clock, AsyncExitStack(), snapshot, market)
        case.access = access
        return [finding async for finding in run_checks(case, only_quick=True)]

    # All other settings come from the environment, which the process reads too.
    arguments = ("--live",) if settings.source == "live" else ()
    return Doctor(run_quick_checks, partial(run_doctor_process, TIMEOUT_S, *arguments))


async def run_doctor_process(timeout_s: float, *arguments: str) -> list[Finding]:
    """Return the findings of all checks, which run in a process of their own.

    The command checks the bars with the compute side, which serving processes do not load, reads
    whole files, and configures logs. In its own process it delays no call.
    """
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    except TimeoutError:
        return [
            Finding(
                "warn",
                "doctor",
                f"the checks took longer than {timeout_s:g} s: run `signals doctor` in a shell",
            )
        ]
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


async def _check_settings(case: Case) -> Findings:
    settings = case.settings
    set_variables = ", ".join(sorted(PREFIX + name.upper() for name in settings.model_fields_set))
    yield (
        "ok",
        f"{set_variables or 'all by default'}; served at {settings.address}; "
        f"logs from level {settings.log_level}",
    )
    if settings.address_hint is not None:
        yield "warn", settings.address_hint


async def _check_prices(case: Case) -> Findings:
    source = None if case.market is None else (await case.market.progress()).source
    settings = case.settings
    _, why = decide_prices(
        settings.show_prices, source, settings.source, is_local=settings.is_local
    )
    yield "ok", why


async def check_market(case: Case) -> Findings:
    """Grade the store of market data, and open it if it can be read."""
    settings = case.settings
    grade, text = await _grade_store(settings, "market")
    if settings.is_sqlite or grade == "fix":
        yield grade, text
    else:
        from store.postgres.market_engine import load_database_info
        from store.postgres.schema import SCHEMAS

        info = await load_database_info(
            settings.database_url.get_secret_value(), SCHEMAS["market"][0]
        )
        size = f"{info.size_bytes / 2**20:.0f} MiB"
        yield grade, f"{text} (PostgreSQL {info.server_version}, {size})"
        yield Finding("ok", "computing", info.lock_holder or "no process at the moment")
    if grade == "ok":
        case.market = await case.stack.enter_async_context(open_market(settings))
        case.snapshot = build_snapshot(await case.market.snapshot())


async def check_access(case: Case) -> Findings:
    """Grade the store of keys, and open it, or an empty one if it cannot be used."""
    settings = case.settings
    grade, text = await _grade_store(settings, "access")
    yield grade, text
    if grade != "ok":
        # Opening a store migrates it. The empty one lets the other checks run without that.
        folder = case.stack.enter_context(tempfile.TemporaryDirectory())
        settings = Settings(database_url=SecretStr(f"sqlite:///{folder}/empty.db"))
    case.access = await case.stack.enter_async_context(open_access(settings))
    known_id = None if case.market is None else await case.market.find_access_id()
    if grade == "ok" and known_id not in (None, await case.access.get_id()):
        yield "fix", describe_lost_keys(settings, IS_ANOTHER)


async def _grade_store(settings: Settings, kind: StoreKind) -> tuple[Grade, str]:
    """Grade a store without changing it."""
    # Files created here would belong to the user of the doctor, and the service could not write
    # them. So nothing is opened until it is known to exist and to be up to date.
    path, location = get_path(settings, kind), get_location(settings, kind)
    try:
        # The first start creates both stores. If only one is missing, it is lost.
        missing = [one for one in get_args(StoreKind) if not await has_store(settings, one)]
        if len(missing) == 2:
            return "warn", f"not started yet: `signals serve` creates {location}"
        if kind in missing and kind == "market" and has_other_market(settings):
            return "warn", f"not started yet: the next start creates {location}"
        if kind in missing and kind == "market":
            return "fix", f"there is no store at {location}, but its keys: {RESTORE_MARKET_HINT}"
        if kind in missing:
            return "fix", f"there is no store at {location}: {RESTORE_HINT}, or {ADOPT_HINT}"
        if settings.is_sqlite and (fault := _find_file_fault(path)) is not None:
            return "fix", f"{location} {fault}: set SIGNALS_DATABASE_URL to another file"
        is_older = await count_pending_migrations(settings, kind) > 0
        if settings.is_sqlite:
            from store.sqlite.database_files import check_integrity

            check_integrity(path, "quick_check")
    except StoreError as error:
        restore_hint = "to restore a backup, use `signals restore`"
        return "fix", f"{error} ({restore_hint if settings.is_sqlite else CONNECTION_HINT})"
    if not settings.is_sqlite:
        state = "has an older schema: the next start migrates it" if is_older else "is up to date"
        return "warn" if is_older else "ok", f"{get_location(settings, kind)} {state}"
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        return "fix", f"{path} and its folder must be writable by this user"
    if is_older:
        return "warn", f"{path} has an older schema: the next start copies and migrates it"
    return "ok", f"{path} is intact and up to date"


def _find_file_fault(path: Path) -> str | None:
    """Describe a file that is no database; a later check finds a damaged one."""
    if path.is_dir():
        return "is a folder"
    try:
        with path.open("rb") as file:
            is_database = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if is_database else "is not a SQLite database"


async def _check_disk(case: Case) -> Findings:
    folder = case.settings.market_path.parent
    if not folder.is_dir():
        yield "fix", f"there is no folder {folder}"
        return
    if (warning := describe_remote_file_system(case.settings)) is not None:
        yield "fix", warning
    free = shutil.disk_usage(folder).free
    size = f"{free / 2**20:.0f} MiB" if free < 2**30 else f"{free / 2**30:.1f} GiB"
    text = f"{size} are free at {folder.absolute()}"
    if free < MIN_FREE_BYTES:
        yield "fix", f"{text}: free some space, because without it all calls fail"
    else:
        yield "warn" if free < WARN_FREE_BYTES else "ok", text


async def check_last_run(case: Case) -> Findings:
    """Check that the newest run is there, and that it has the bars of all assets."""
    snapshot, now = case.snapshot, case.clock()
    assert case.market is not None
    if (outage := (await case.market.progress()).outage) is not None:
        yield "warn", f"nothing can be computed at the moment: {outage}"
        if snapshot is None:
            return
    if snapshot is None:
        yield "warn", "there is no history yet: start `signals serve`, or wait while it builds one"
        return
    hours, minutes = divmod(max(now - snapshot.market_time, 0) // 60_000, 60)
    age = f"{hours} hours" if hours < 48 else f"{hours // 24} days"
    if hours < 2:
        age = f"{60 * hours + minutes} minutes"
    ran_at = format_instant(snapshot.market_time)
    last_run = f"the last run was {age} ago ({ran_at})"
    if is_final(snapshot):
        yield "ok", f"{last_run}; the recording is complete"
    elif is_ahead(snapshot, now):
        yield (
            "warn",
            f"the last run is dated {ran_at}, in the future: correct the clock of this machine; if "
            "it is right, nothing is computed until then, so restore a backup",
        )
    elif is_stale(snapshot, now):
        yield "warn", f"{last_run}: start `signals serve` or `signals compute`"
    elif building := snapshot.building_tickers:
        text = f"{last_run}; the history of {len(building)} assets is still being built"
        yield "warn", f"{text} ({format_names(building)})"
    # The simulated market invents its late bars.
    elif snapshot.coverage.source != "simulated" and (late := snapshot.stored.late):
        yield (
            "warn",
            f"{last_run}; bars of {len(late)} assets are late ({format_names(list(late))})",
        )
    else:
        yield "ok", last_run


async def check_log(case: Case) -> Findings:
    """Check that the newest rows of the feed are signed, and cosigned if there are witnesses."""
    assert case.market is not None
    checkpoint = await case.market.feed_log.checkpoint()
    note = checkpoint.note or ""
    cosigned = note.count("\n— ") - note.count(f"\n— {note.partition(chr(10))[0]} ")
    text = f"{checkpoint.size} rows of the feed are signed"
    if checkpoint.refusal is not None:
        yield (
            "fix",
            f"no new rows are signed: {checkpoint.refusal}; restore a newer copy of the database, "
            "or the key file; if there is none, stop the service and run `signals log restart`",
        )
    elif checkpoint.note is None:
        yield "warn", "the feed is not signed yet: the first run of `signals serve` signs it"
    elif case.settings.witness_policy is None:
        yield "ok", text
    else:
        yield "ok" if cosigned else "warn", f"{text}, and cosigned by {cosigned} witnesses"


async def check_log_key(case: Case) -> Findings:
    """Compare the key file of the log with the rows, as a start does."""
    assert case.market is not None
    # Serving processes must not load the compute side.
    from service.config.sources import build_log_signer

    refusal = await build_log_signer(case.settings, case.market, case.clock).find_refusal()
    if refusal is not None and (await case.market.feed_log.checkpoint()).refusal is None:
        yield "fix", f"the next run would sign no rows: {refusal} ({case.settings.log_key_path})"


async def _check_source(case: Case) -> Findings:
    # Serving processes must not load the compute side.
    from service.commands.doctor_venues import examine_source

    async for finding in examine_source(case.settings, case.market, case.clock):
        yield finding


async def check_billing(case: Case) -> Findings:
    """Check the prices at the payment processor, and Stripe's portal for customers."""
    try:
        provider = open_provider(case.settings, case.access, case.clock)
    except BillingSetupError as error:
        case.has_provider = False
        yield "fix", str(error)
        return
    case.stack.push_async_callback(provider.close)
    label = provider.name if provider.mode is None else f"{provider.name}, {provider.mode} mode"
    try:
        reason = await find_outage_reason(provider)
    except BillingSetupError as error:
        yield "fix", f"{label}: {error}"
        return
    if reason is not None:
        yield (
            "warn",
            f"{label}: the payment processor is not responding, so no one can buy ({reason})",
        )
        return
    yield "ok", label
    if provider.name == "stripe":
        try:
            await provider.check_portal()
        except (BillingSetupError, BillingError) as error:
            yield "warn", f"members cannot change or cancel their plan themselves: {error}"
        else:
            yield "ok", "members can open the customer portal"


async def _check_operator(case: Case) -> Findings:
    settings = case.settings
    names = ("operator_name", "operator_contact", "terms_url", "privacy_url")
    missing = [PREFIX + name.upper() for name in names if getattr(settings, name) is None]
    if missing:
        yield "warn", f"buyers do not see whom they pay and on what terms: set {', '.join(missing)}"
    else:
        yield "ok", f"{settings.operator_name}, {settings.operator_contact}"


async def check_memberships(case: Case) -> Findings:
    """Name the subscriptions that give no access but can still be charged."""
    mode = "live" if case.settings.is_stripe_live else "test"
    charged = [
        membership.subscription
        for membership in await case.access.list_open_memberships("stripe")
        if membership.ended_at is not None and membership.mode == mode
    ]
    if charged:
        yield (
            "warn",
            f"{len(charged)} members have no access, but Stripe may still charge them "
            f"({format_names(charged)}): settle or cancel these subscriptions",
        )


async def _check_proxies(case: Case) -> Findings:
    notices = {notice.name: notice for notice in await case.access.list_notices()}
    last_notice = notices.get(NOTICE_NAME)
    if last_notice is None or case.clock() - last_notice.at > DAY_MS:
        yield "ok", "no unknown proxy sent X-Forwarded-For in the last day"
    else:
        yield (
            "warn",
            f"{last_notice.detail} sends X-Forwarded-For but is not in SIGNALS_TRUSTED_PROXIES, so "
            "all clients behind it share one throttle: if it is your proxy, add it",
        )


async def _check_notices(case: Case) -> Findings:
    notices = {notice.name: notice for notice in await case.access.list_notices()}
    for name, hint in NOTICE_HINTS.items():
        notice = notices.get(name)
        if notice is not None and case.clock() - notice.at <= DAY_MS:
            yield Finding(
                "warn",
                name.split()[0],
                f"{name} at {format_instant(notice.at)} ({notice.detail}): {hint}",
            )


async def _check_backup(case: Case) -> Findings:
    notices = {notice.name: notice for notice in await case.access.list_notices()}
    done, failed = notices.get(BACKUP_NOTICE), notices.get(BACKUP_FAILED_NOTICE)
    if failed is not None and (done is None or failed.at > done.at):
        yield "fix", f"the last one failed at {format_instant(failed.at)}: {failed.detail}"
    elif done is None:
        grade: Grade = "ok" if case.settings.is_local else "warn"
        yield grade, "there is none yet: run `signals backup` every night, see docs/recovery.md"
    else:
        days = (case.clock() - done.at) // DAY_MS
        text = f"the last one is of {format_instant(done.at)}"
        yield ("warn", f"{text}, {days} days ago") if days > 1 else ("ok", text)


async def _check_certificate(case: Case) -> Findings:
    # It loads an HTTP client, which the other checks do not need.
    from service.http.resources import read_certificate_end

    address = case.settings.address
    try:
        days = (await read_certificate_end(address) - case.clock()) // DAY_MS
    except ssl.SSLError as error:
        yield "fix", f"that of {address} is refused by clients: {error.reason}"
    except (OSError, TimeoutError) as error:
        yield "warn", f"{address} does not answer from this machine ({type(error).__name__})"
    else:
        text = f"that of {address} is valid for {days} days"
        yield ("ok", text) if days >= 14 else ("warn", f"{text}: renew it")


async def _check_mail(case: Case) -> Findings:
    # It connects to the SMTP server but sends nothing.
    try:
        yield "ok", await open_mailer(case.settings).check()
    except (SettingsError, MailError) as error:
        yield "fix", str(error)


def _find_always(grade: Grade, text: str) -> Callable[[Case], Findings]:
    async def find(case: Case) -> Findings:
        yield grade, text

    return find


def _is_https(case: Case) -> bool:
    return case.settings.address.startswith("https://")


def _sells(case: Case) -> bool:
    return case.has_provider and case.settings.billing == "stripe"


CHECKS: Final = (
    Check("settings", lambda case: True, _check_settings, True),
    Check(
        "oauth",
        lambda case: not can_serve_oauth(case.settings.address),
        _find_always(
            "warn",
            "off, because tokens must not cross a network unencrypted: serve over https and set "
            "SIGNALS_BASE_URL to that address; clients with an API key need no OAuth",
        ),
        True,
    ),
    Check("store", lambda case: True, check_market),
    Check("prices", lambda case: True, _check_prices, True),
    Check("disk", lambda case: case.settings.is_sqlite, _check_disk, True),
    Check("runs", lambda case: case.market is not None, check_last_run, True),
    Check("log", lambda case: case.market is not None, check_log, True),
    Check("log", lambda case: case.market is not None, check_log_key),
    Check("source", lambda case: True, _check_source),
    Check("store", lambda case: True, check_access),
    Check("billing", lambda case: True, check_billing),
    Check(
        "billing",
        lambda case: (
            case.has_provider and case.settings.billing == "sandbox" and not case.settings.is_local
        ),
        _find_always("warn", "sandbox gives a key to anyone who reaches this service"),
        True,
    ),
    Check("billing", _sells, _find_always("ok", "SIGNALS_STRIPE_WEBHOOK_SECRET is set"), True),
    Check(
        "billing",
        lambda case: _sells(case) and not (case.settings.base_url or "").startswith("https://"),
        _find_always(
            "warn",
            "SIGNALS_BASE_URL is not a public https:// address: Stripe cannot send webhooks, and "
            "buyers do not return from its pay page",
        ),
        True,
    ),
    Check("operator", _sells, _check_operator, True),
    Check("billing", lambda case: case.settings.billing == "stripe", check_memberships, True),
    Check("proxies", lambda case: True, _check_proxies, True),
    Check(
        "proxies",
        lambda case: _is_https(case) and not case.settings.trusted_proxies,
        _find_always(
            "warn",
            "SIGNALS_BASE_URL is https, which a proxy serves, but SIGNALS_TRUSTED_PROXIES names "
            "none: without it, all clients share one throttle",
        ),
        True,
    ),
    Check("certificate", _is_https, _check_certificate),
    Check("webhook, mail", lambda case: True, _check_notices, True),
    Check("backup", lambda case: case.settings.is_sqlite, _check_backup, True),
    Check("mail", lambda case: True, _check_mail),
    Check(
        "mail",
        lambda case: (
            case.settings.smtp_url is None
            and case.settings.billing != "off"
            and not case.settings.is_local
        ),
        _find_always(
            "warn",
            "mail is not sent, so members cannot sign in to manage keys: set SIGNALS_SMTP_URL and "
            "SIGNALS_MAIL_FROM",
        ),
        True,
    ),
)
