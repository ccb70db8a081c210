"""Runs `signals doctor` in a process of its own, for the operations page.

The command checks the bars with the compute side, which serving processes do not load, reads whole
files, and configures logs. In its own process it delays no call.
"""

import asyncio
import sys
from functools import partial

from schemas.clock import Clock
from service.commands.console import Finding, parse_finding
from service.commands.doctor_quick import run_quick_checks
from service.config.settings import Settings
from serving.snapshot import Snapshot
from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore
from web.operations import Doctor

COMMAND = (
    sys.executable,
    "-c",
    "from service.commands.cli import main; raise SystemExit(main())",
    "doctor",
)
# Less than the time after which the page takes the checks for dead.
TIMEOUT_S = 150.0


def build_doctor(
    settings: Settings, market: MarketStore, access: AccessStore, clock: Clock
) -> Doctor:
    """Return the checks of a service with these settings."""

    async def check_quickly(snapshot: Snapshot | None) -> list[Finding]:
        return await run_quick_checks(settings, snapshot, market, access, clock())

    return Doctor(check_quickly, partial(run_doctor_process, TIMEOUT_S))


async def run_doctor_process(timeout_s: float) -> list[Finding]:
    """Return the findings of all checks.

    The process reads the same environment, and so the same settings, as this one did.
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
