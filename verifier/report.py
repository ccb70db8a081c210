"""What a verification says: its errors, its report, and how texts of others are quoted in both.

Besides this package, the commands of `service` use it.
"""

import json
from collections import Counter
from dataclasses import dataclass, field

MAX_SHOWN_CHARACTERS = 500


class VerifyError(Exception):
    """The reason why something could not be verified, in one line."""


def escape_unprintable(text: str) -> str:
    """Return text with the escapes of JSON for what could steer a terminal or is not Unicode."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def format_one_line(text: str, secret: str = "") -> str:
    """Return text that quotes a service as one printable line, with a secret replaced."""
    hidden = text.replace(secret, "(the key)") if secret else text
    line = escape_unprintable(" ".join(hidden.split()))
    return line if len(line) <= MAX_SHOWN_CHARACTERS else line[:MAX_SHOWN_CHARACTERS] + "..."


MAX_SHOWN_FINDINGS = 100
VERIFIED, CONTRADICTED, UNVERIFIED = 0, 1, 2


@dataclass
class Report:
    """Counts and texts of one verification.

    `findings` contradict what the service signed or served before. `obstacles` are reasons why
    something could not be verified. `evidence` are signed notes with their captions.
    """

    checked: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)
    evidence: list[tuple[str, str]] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The exit status: 0 verified, 1 there are findings, 2 something could not be verified."""
        if self.findings:
            return CONTRADICTED
        return UNVERIFIED if self.obstacles else VERIFIED

    def format_lines(self) -> list[str]:
        """Return the lines to print; evidence is printed only with findings."""
        counts = (f"{count} {what}" for what, count in self.checked.items() if count)
        lines = ["checked: " + (", ".join(counts) or "nothing"), *self.notes]
        lines += (f"not verified: {one}" for one in self.obstacles)
        lines += self.findings[:MAX_SHOWN_FINDINGS]
        if len(self.findings) > MAX_SHOWN_FINDINGS:
            lines.append(f"and {len(self.findings) - MAX_SHOWN_FINDINGS} more")
        return [*map(format_one_line, lines), *self.format_evidence(), self._format_verdict()]

    def format_evidence(self) -> list[str]:
        """Return the signed notes with their captions, nothing without findings."""
        if not self.findings:
            return []
        notes = [
            line
            for caption, note in self.evidence
            for line in (
                "",
                f"{caption}:",
                "",
                *map(escape_unprintable, note.rstrip("\n").split("\n")),
            )
        ]
        return [*notes, ""]

    def _format_verdict(self) -> str:
        if self.status == CONTRADICTED:
            count = len(self.findings)
            return f"{count} finding{'s' if count > 1 else ''}"
        return "verified" if self.status == VERIFIED else "not verified"
