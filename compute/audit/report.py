"""What an audit looked at and what it found."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """What an audit looked at and what it found wrong, each finding one line."""

    checked: Counter[str] = field(default_factory=Counter)
    not_verifiable: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def add_finding(self, finding: str) -> None:
        """Note what is wrong."""
        self.findings.append(finding)
