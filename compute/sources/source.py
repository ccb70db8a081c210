"""The seam to market data: two methods, so that every source is a small file."""

from dataclasses import dataclass
from typing import Protocol

from compute.bars import Funding, Series
from schemas.operator_error import OperatorError
from schemas.vocabulary import SourceKind, Timeframe


class SourceError(OperatorError):
    """A source that cannot be read, told in one line that names the place."""


class NotReadyError(SourceError):
    """A source of which nothing may be computed at the moment; what was computed stands."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What a source adds for one asset: accepted bars, settlements, and its watermark.

    The source will add nothing more that closes or settles up to `watermark` (epoch seconds).
    A `history` that holds bars tells anew all up to where was asked from, after a split or from
    another venue: it supersedes what was told before, `bars` follow it, and `why` says why in a
    line. Settlements are not restated.
    """

    bars: Series
    funding: Funding
    watermark: int
    history: Series | None = None
    reason: str = ""

    @property
    def is_restated(self) -> bool:
        """Whether what was told before is superseded."""
        return self.history is not None and len(self.history) > 0

    @property
    def all_bars(self) -> Series:
        """All bars that are told, with the history before them."""
        return self.bars if self.history is None else self.history.concatenate(self.bars)


class Source(Protocol):
    """Closed bars of a set of assets. `name` is what a store remembers it by.

    `shown_history_s` is how much of what was before a first start the feed shows.
    """

    name: str
    kind: SourceKind
    shown_history_s: int

    @property
    def ends_at(self) -> int | None:
        """The close (epoch seconds) of the last bar there will ever be; None while growing."""

    def get_native_timeframe(self, ticker: str) -> Timeframe | None:
        """Return the timeframe of the bars it delivers, None for an asset it does not cover."""

    def get_listing(self, ticker: str) -> str | None:
        """Return where the bars of an asset are from, None where the source has one place."""

    def get_delay_s(self, ticker: str) -> int:
        """Return how long after its close a bar of an asset may come without being late."""

    def find_next_close(self, ticker: str, after: int) -> int | None:
        """Return the close of an asset's first bar that closes after a time, if it knows one."""

    def find_last_close(self, ticker: str, at: int) -> int:
        """Return when the last bar expected by an instant closes, -1 where none is expected."""

    async def check_ready(self) -> None:
        """Raise NotReadyError where nothing may be computed at the moment."""

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        """Return the bars that close, and the rates that settle, in (after, until]."""
