"""The result of an audit."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Counts of checked and unverifiable items, and the findings, one line each."""

    checked: Counter[str] = field(default_factory=Counter)
    not_verifiable: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def add_finding(self, finding: str) -> None:
        """Add a finding: one line that names the table and the fault."""
        self.findings.append(finding)
