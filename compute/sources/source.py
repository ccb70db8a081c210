"""The interface to market data that each source implements."""

from dataclasses import dataclass, field
from typing import Protocol

from compute.bars import NO_BARS, Funding, Series, Times
from schemas.errors import OperatorError
from schemas.vocabulary import SourceKind, Timeframe


class SourceError(OperatorError):
    """A source that cannot be read, described in one line that names the place."""


class NotReadyError(SourceError):
    """A source that must not be computed from at the moment; stored results stay valid."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """New accepted bars and settlements of one asset, and its watermark.

    The source will add nothing more that closes or settles up to `watermark` (epoch seconds).
    If `history` holds bars, the asset's history was restated, by a split or a change of venue: the
    stored bars are replaced by `history`, `bars` follow it, and `reason` explains it in one line.
    Settlements are never restated. If `has_failed`, the source could not deliver anything.
    `missing` has the closes up to the newest bar that the session expects and that no bar has; they
    never come any more. If `is_newly_held`, an implausible bar was held for the first time.
    """

    bars: Series
    funding: Funding
    watermark: int
    history: Series | None = None
    reason: str = ""
    has_failed: bool = False
    missing: Times = field(default_factory=lambda: NO_BARS.close_time)
    is_newly_held: bool = False

    @property
    def is_restated(self) -> bool:
        """Whether `history` replaces the stored bars."""
        return self.history is not None and len(self.history) > 0


class Source(Protocol):
    """Closed bars and funding of a set of assets.

    A store remembers its source by `name`. The feed of a new store shows the last
    `shown_history_s` before its first start. What the methods with a body return is right for a
    source that keeps growing, has one venue, and whose bars open on the hour and come at once.
    """

    name: str
    kind: SourceKind
    shown_history_s: int = 0

    @property
    def ends_at(self) -> int | None:
        """The close (epoch seconds) of a recording's last bar; None if the source keeps growing."""
        return None

    def get_native_timeframe(self, ticker: str) -> Timeframe | None:
        """Return the timeframe of an asset's bars, None if the source does not cover the asset."""

    def get_listing(self, ticker: str) -> str | None:
        """Return venue and symbol of an asset's bars, None if the source has only one venue."""
        return None

    def has_off_hour_bars(self, ticker: str) -> bool:
        """Return whether any of an asset's hourly bars opens off the hour, as recorded ones may."""
        return False

    def get_delay_s(self, ticker: str) -> int:
        """Return how long (seconds) after its close an asset's bar may come without being late."""
        return 0

    def get_end(self, ticker: str) -> int | None:
        """Return the close of an asset's last recorded bar, None if the source keeps growing."""
        return None

    def find_next_close(self, ticker: str, after: int) -> int | None:
        """Return the close of an asset's first bar that closes after a time, None if unknown."""

    def find_last_close(self, ticker: str, at: int) -> int:
        """Return the close of the last bar expected by an instant, -1 if none is expected."""

    async def has_moved(self) -> bool:
        """Choose the venues again if that is due; return whether any asset's listing has changed.

        After a change, open another pipeline: it publishes the coverage and loads the state.
        """
        return False

    async def check_ready(self) -> None:
        """Raise NotReadyError if nothing may be computed at the moment."""
        return

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        """Return the bars that close and the rates that settle in (after, until].

        If the source cannot deliver them, return what there is with the watermark reached.
        """
