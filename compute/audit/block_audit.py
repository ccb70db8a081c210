"""The tasks of an audit: all checks that concern one block of assets only. Pure.

A task takes a block and its parts of some commits, and returns the block with the findings; the
leader combines them over all assets.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from compute.audit.epochs import Epochs
from compute.audit.recompute import BlockStepper, CommitPart, ComputedCarry
from compute.audit.row_matcher import MatchedRows, RowMatcher
from compute.stepper import Cell
from store.market_rows import CarryRow


class CheckedPart(NamedTuple):
    """The result of checking a part of a commit: its matched rows, and the number of readings."""

    matched: MatchedRows
    reading_count: int


class StateFindings(NamedTuple):
    """Faults of stored readings and carries, and the carries that belong to no bar."""

    readings: list[str]
    carries: list[str]
    not_verifiable: Counter[str]
    surplus_carries: set[Cell]


class AuditBlock:
    """The state of some assets after the commits that were checked."""

    def __init__(self, stepper: BlockStepper, matcher: RowMatcher, epochs: Epochs) -> None:
        """`epochs` are those of the block's assets."""
        self._stepper: Final = stepper
        self._matcher: Final = matcher
        self._epochs: Final = epochs

    def check_part(self, part: CommitPart) -> CheckedPart:
        """Step a commit's bars of the block's assets, and match the commit's stored rows."""
        recomputed = self._stepper.step_part(part)
        matched = self._matcher.match(
            recomputed.changes, recomputed.alerts, part.rows, wants_all=part.wants_all_rows
        )
        return CheckedPart(matched, recomputed.reading_count)

    def check_state(
        self, readings: Mapping[Cell, int], carries: Mapping[Cell, CarryRow]
    ) -> StateFindings:
        """Compare the stored readings and carries of the block's assets, after the last commit."""
        computed_carries = self._stepper.dump_carries()
        found = StateFindings(
            self._compare_readings(readings), [], Counter(), carries.keys() - computed_carries
        )
        for cell in sorted(computed_carries):
            self._compare_carry(carries.get(cell), cell, computed_carries[cell], found)
        return found

    def _compare_readings(self, stored: Mapping[Cell, int]) -> list[str]:
        computed = self._stepper.get_readings()
        return [
            f"readings: {'.'.join(cell)} is {stored.get(cell)}, "
            f"but the bars give {computed.get(cell)}"
            for cell in sorted(stored.keys() | computed.keys())
            if stored.get(cell) != computed.get(cell)
        ]

    def _compare_carry(
        self, stored: CarryRow | None, cell: Cell, computed: ComputedCarry, found: StateFindings
    ) -> None:
        name = ".".join(cell)
        if stored is None:
            found.carries.append(f"carries: {name} is missing")
            return
        is_same = (stored.close_time, stored.data) == (computed.close_time, computed.data)
        if stored.version != computed.version:
            found.not_verifiable[f"carry of {cell.key}: v{stored.version}"] += 1
        elif stored.layout != computed.layout and not is_same:
            found.not_verifiable[f"carry of {cell.key}: layout {stored.layout}"] += 1
        elif stored.layout != computed.layout:
            found.carries.append(f"carries: {name} has the layout {stored.layout} of other data")
        elif not is_same:
            found.carries.append(f"carries: {name} does not follow from the bars")
        found.carries.extend(self._compare_epoch(stored, cell))

    def _compare_epoch(self, stored: CarryRow, cell: Cell) -> Iterator[str]:
        """Yield how a carry, or the bars that it rests on, differ from the epochs of its cell."""
        name, epoch = ".".join(cell), self._epochs.find_newest(cell)
        # Only a cell that has begun is compared.
        if epoch is None:
            return
        if (stored.epoch, stored.version) != (epoch.epoch, epoch.version):
            yield (
                f"carries: {name} is of epoch {stored.epoch}, version {stored.version}, but its "
                f"newest epoch is {epoch.epoch}, version {epoch.version}"
            )
        if epoch.revision != (revision := self._stepper.get_revision(cell.ticker)):
            yield f"epochs: {name} is of revision {epoch.revision}, but its bars are of {revision}"
        first, first_bar = self._epochs.find_first_bar(cell), self._stepper.find_first_bar(cell[:2])
        if first is not None and first != first_bar:
            yield f"epochs: {name} begins at {first}, but its first bar is at {first_bar}"


class CommitsTask(NamedTuple):
    """A block, and its parts of some commits in their order."""

    block: AuditBlock
    parts: Sequence[CommitPart]


class CommitsResult(NamedTuple):
    """The block after the commits, and the checked part of each."""

    block: AuditBlock
    checked: list[CheckedPart]


class StateTask(NamedTuple):
    """A block after the last commit, and its assets' stored readings and carries."""

    block: AuditBlock
    readings: Mapping[Cell, int]
    carries: Mapping[Cell, CarryRow]


def check_commits(task: CommitsTask) -> CommitsResult:
    """Check the parts of some commits; the returned block is the advanced one."""
    # In a thread it is the given object; another process returns a copy of its own.
    return CommitsResult(task.block, [task.block.check_part(part) for part in task.parts])


def check_state(task: StateTask) -> StateFindings:
    """Check the stored state after the last commit."""
    return task.block.check_state(task.readings, task.carries)
