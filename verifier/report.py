"""What a verification says: its errors, its report, and how texts of others are quoted in both.

Besides this package, the commands of `service` use it.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_SHOWN_CHARACTERS = 500
MAX_VALUE_CHARACTERS = 160
MAX_SHOWN_FINDINGS = 100
VERIFIED, CONTRADICTED, UNVERIFIED = 0, 1, 2


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


def format_value(value: object) -> str:
    """Return a value of an answer as short ASCII JSON."""
    text = json.dumps(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[:MAX_VALUE_CHARACTERS] + "..."


@dataclass
class Report:
    """Counts and texts of one verification.

    `findings` contradict what the service signed, served before or serves elsewhere. `obstacles`
    are reasons why something could not be verified. `evidence` are signed notes with their
    captions.
    """

    checked: Counter[str] = field(default_factory=Counter)
    not_checked: Counter[str] = field(default_factory=Counter)
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

    def check_equal(self, label: str, actual: object, expected: object) -> None:
        """Add a finding if a value differs from the one recomputed from other answers."""
        # In Python True == 1, but in JSON they differ.
        if actual != expected or isinstance(actual, bool) != isinstance(expected, bool):
            self.findings.append(
                f"{label} is {format_value(actual)}, recomputed {format_value(expected)}"
            )

    def check_true(self, text: str, is_true: bool) -> None:
        """Add a finding if a condition is false."""
        if not is_true:
            self.findings.append(text)

    def check_unique(self, label: str, names: Iterable[str]) -> None:
        """Add a finding for each name that occurs more than once."""
        for name, times in Counter(names).items():
            self.check_true(f"{label}: {name} occurs {times} times", times == 1)

    def format_lines(self) -> list[str]:
        """Return the lines to print; evidence is printed only with findings."""
        counts = (f"{count} {what}" for what, count in self.checked.items() if count)
        lines = ["checked: " + (", ".join(counts) or "nothing"), *self.notes]
        lines += (f"not checked: {what} ({count})" for what, count in self.not_checked.items())
        lines += (f"not verified: {one}" for one in self.obstacles)
        lines += self.findings[:MAX_SHOWN_FINDINGS]
        if len(self.findings) > MAX_SHOWN_FINDINGS:
            lines.append(f"and {len(self.findings) - MAX_SHOWN_FINDINGS} more")
        count = len(self.findings)
        verdict = "verified" if self.status == VERIFIED else "not verified"
        if count:
            verdict = f"{count} finding{'s' if count > 1 else ''}"
        lines = [*map(format_one_line, lines)]
        if self.findings:
            for caption, note in self.evidence:
                text = map(escape_unprintable, note.rstrip("\n").split("\n"))
                lines += ["", f"{caption}:", "", *text]
            lines.append("")
        return [*lines, verdict]
