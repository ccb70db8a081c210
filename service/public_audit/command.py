"""`signals audit --public`: checks that the views of a service agree, and verifies its log."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from schemas.clock import Clock
from service.commands.console import open_progress_bar, print_findings
from service.config.state_home import find_verify_folder
from service.public_audit.audit import run_public_audit
from service.public_audit.reader import Reader
from verifier.client import ServiceClient
from verifier.record import Record
from verifier.verification import Request, Verification


async def audit_public_service(
    url: str, api_key: str, days: int, folder: Path | None, clock: Clock
) -> int:
    """Audit a running service through its REST API; return the exit status.

    `folder` has the customer's record of the log, None for the default one.
    """
    with open_progress_bar("reading") as on_progress:
        async with Reader(url, api_key, on_progress) as reader:
            report = await run_public_audit(reader, days)
    with open_progress_bar("verifying the log") as on_progress:
        async with ServiceClient(reader.address, api_key) as client:
            record = Record(folder or find_verify_folder(reader.address))
            verification = Verification(
                client, record, lambda: datetime.fromtimestamp(clock() / 1000, UTC), on_progress
            )
            proof = await verification.run(Request(days=days))
    notes = [f"not checked: {what} ({n})" for what, n in report.not_checked.items()]
    quota_note = f"{reader.counted_calls} of them counted against the key's daily quota"
    notes.append(f"{reader.calls} calls, {quota_note}; {client.calls} more for the log")
    report.checked.update(proof.checked)
    return print_findings(
        report.checked,
        [*report.findings, *proof.findings],
        [*notes, *proof.notes, *proof.format_evidence()],
        Counter(proof.obstacles),
    )
