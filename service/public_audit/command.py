"""`signals audit --public`: checks that the views of a running service agree."""

from service.commands.console import open_progress_bar, print_findings
from service.public_audit.audit import run_public_audit
from service.public_audit.reader import Reader


async def audit_public_service(url: str, api_key: str, days: int) -> int:
    """Audit a running service through its REST API; return 1 if there are findings."""
    with open_progress_bar("reading") as on_progress:
        async with Reader(url, api_key, on_progress) as reader:
            report = await run_public_audit(reader, days)
    notes = [f"not checked: {what} ({n})" for what, n in report.not_checked.items()]
    quota_note = f"{reader.counted_calls} of them counted against the key's daily quota"
    notes.append(f"{reader.calls} calls, {quota_note}")
    return print_findings(report.checked, report.findings, notes)
