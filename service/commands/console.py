"""Console output of commands: messages and progress on stderr, findings on stdout."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, NamedTuple

from schemas.vocabulary import Clock
from verifier.report import escape_unprintable

MAX_SHOWN_FINDINGS = 100
# Exit statuses of an audit.
FOUND, NOT_VERIFIABLE = 1, 2
MAX_SHOWN_NAMES = 10
MINUTE_MS = 60_000

OnProgress = Callable[[int, int], None]
# Opens a progress bar with a label; the second argument is called if there is no terminal.
OpenProgressBar = Callable[[str, OnProgress], AbstractContextManager[OnProgress]]


def echo(text: str) -> None:
    """Print a message to standard error; standard output is for a command's results."""
    # One write per line, so that lines of several processes are not mixed.
    sys.stderr.write(f"{text}\n")


@contextmanager
def open_progress_bar(
    label: str, fallback: OnProgress = lambda done, total: None
) -> Iterator[OnProgress]:
    """Yield a `(done, total)` callback: a progress bar on a terminal, else `fallback`."""
    if not sys.stderr.isatty():
        yield fallback
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn as TimeColumn,
    )

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeColumn()
    with Progress(*columns, console=Console(stderr=True, soft_wrap=True)) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def rebase_progress(on_progress: OnProgress) -> OnProgress:
    """Wrap a callback so that `done` counts from the first reported value, not from 0."""
    starts: list[int] = []

    def report(done: int, end: int) -> None:
        starts.append(done)
        on_progress(done - starts[0], max(end - starts[0], 1))

    return report


class ProgressLog:
    """Progress without a terminal: a line at a twentieth, and at every tenth."""

    def __init__(self, label: str, clock: Clock, describe: Callable[[], str] = lambda: "") -> None:
        """Start; `clock` is used to estimate the remaining time, `describe` ends each line."""
        self._label = label
        self._clock = clock
        self._describe = describe
        self._began_at = clock()
        self._reported_tenths = -1

    def __call__(self, done: int, total: int) -> None:
        """Print the share that is done, if it reached a twentieth or another tenth."""
        tenths = 10 * done // max(total, 1)
        if 0 < total <= 20 * done and tenths > self._reported_tenths:
            # At the current pace; nothing below half a minute.
            minutes = round((self._clock() - self._began_at) * (total - done) // done / MINUTE_MS)
            left = f", about {minutes} min left" if minutes else ""
            echo(f"{self._label}: {100 * done // total}%{left}{self._describe()}")
            self._reported_tenths = tenths


# Ok, warn (look at it) or fix (the operator must act).
Grade = Literal["ok", "warn", "fix"]


class Finding(NamedTuple):
    """The result of one check."""

    grade: Grade
    subject: str
    text: str


def format_finding(finding: Finding) -> str:
    """Return a finding as one line, which can quote names of files."""
    return f"{finding.grade:4} {finding.subject}: {escape_unprintable(finding.text)}"


def parse_finding(line: str) -> Finding | None:
    """Return the finding of a line of `format_finding`, None if it is none."""
    match = re.fullmatch(r"(ok|warn|fix) +([^:]+): (.*)", line)
    return None if match is None else Finding(*match.groups())  # type: ignore[arg-type]


def format_names(names: Sequence[str]) -> str:
    """Join the first names, and add how many more there are."""
    more = len(names) - MAX_SHOWN_NAMES
    return ", ".join(names[:MAX_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def print_findings(
    checked: Mapping[str, int],
    findings: Sequence[str],
    not_verifiable: Mapping[str, int] | None = None,
) -> int:
    """Print what was checked, findings and a verdict; return the exit status.

    `not_verifiable` counts what could not be checked: with any of it, the verdict is not "clean".
    """
    unchecked = not_verifiable or {}
    print("checked:", ", ".join(f"{count} {what}" for what, count in checked.items()))
    for what, count in unchecked.items():
        print(f"not verifiable: {what} ({count})")
    for finding in findings[:MAX_SHOWN_FINDINGS]:
        print(finding)
    if len(findings) > MAX_SHOWN_FINDINGS:
        print(f"and {len(findings) - MAX_SHOWN_FINDINGS} more")
    if findings:
        print(f"{len(findings)} findings")
        return FOUND
    print(f"no findings, but {sum(unchecked.values())} not verifiable" if unchecked else "clean")
    return NOT_VERIFIABLE if unchecked else 0
