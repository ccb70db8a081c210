"""`signals audit --public`: a running service, held against itself from outside."""

from service.commands.console import print_findings, progress_bar
from service.public_audit.audit import public_audit
from service.public_audit.reader import Reader


async def audit_in_public(url: str, api_key: str, days: int) -> int:
    """Audit a running service through its REST interface alone; 1 where views disagree."""
    with progress_bar("reading") as progressed:
        async with Reader(url, api_key, progressed) as reader:
            report = await public_audit(reader, days)
    notes = [f"not checked: {what} ({n})" for what, n in report.not_checked.items()]
    counted = f"{reader.counted_calls} of them counted against the key's daily quota"
    notes.append(f"{reader.calls} calls, {counted}")
    return print_findings(report.checked, notes, report.findings)
