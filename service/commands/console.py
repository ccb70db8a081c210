"""What commands tell the operator: words and progress on standard error, findings as output."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

from schemas.clock import Clock

SHOWN_FINDINGS = 100
SHOWN_NAMES = 10
MINUTE_MS = 60_000

Progressed = Callable[[int, int], None]


def tell(text: str) -> None:
    """Say something to the operator, whose standard output is left to what a command gives."""
    # In one piece, for other processes may be telling something too.
    sys.stderr.write(f"{text}\n")


@contextmanager
def progress_bar(
    what: str, otherwise: Progressed = lambda done, total: None
) -> Iterator[Progressed]:
    """Yield what takes how much is done of how much: a bar on a terminal, `otherwise` elsewhere."""
    if not sys.stderr.isatty():
        yield otherwise
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeColumn()
    with Progress(*columns, console=Console(stderr=True)) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, total: drawn.update(task, completed=done, total=total)


def from_first(progressed: Progressed) -> Progressed:
    """Tell a way that is measured from elsewhere, as hours are, from where it begins."""
    first: list[int] = []

    def told(done: int, end: int) -> None:
        first.append(done)
        progressed(done - first[0], max(end - first[0], 1))

    return told


class Lines:
    """Progress for logs, where no bar can be drawn: a line at every tenth of the way."""

    def __init__(self, what: str, clock: Clock) -> None:
        """Begin; `clock` tells epoch ms, and so how long what is left may take."""
        self._what = what
        self._clock = clock
        self._began_at = clock()
        self._told = 0

    def __call__(self, done: int, total: int) -> None:
        """Tell the share done, if the way is longer than one pass."""
        tenths = 10 * done // total
        if tenths > self._told:
            tell(f"{self._what}: {tenths}0%{self._left(done, total)}")
            self._told = tenths

    def _left(self, done: int, total: int) -> str:
        """Say how long the rest takes at this pace, if that is worth a word."""
        left_ms = (self._clock() - self._began_at) * (total - done) // done
        minutes = round(left_ms / MINUTE_MS)
        return f", about {minutes} min left" if minutes else ""


class Finding(NamedTuple):
    """One thing that was looked at; `grade` says what it asks of the operator."""

    grade: Literal["ok", "warn", "fix"]
    about: str
    text: str


def named(names: Sequence[str]) -> str:
    """Return some names, and how many more there are."""
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def print_findings(
    checked: Mapping[str, int], notes: Iterable[str], findings: Sequence[str]
) -> int:
    """Print what was checked and what is wrong; return the exit status."""
    print("checked:", ", ".join(f"{count} {what}" for what, count in checked.items()))
    for note in notes:
        print(note)
    for finding in findings[:SHOWN_FINDINGS]:
        print(finding)
    if len(findings) > SHOWN_FINDINGS:
        print(f"and {len(findings) - SHOWN_FINDINGS} more")
    print("clean" if not findings else f"{len(findings)} findings")
    return 1 if findings else 0
