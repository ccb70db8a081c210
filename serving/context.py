"""What a tool handler gets: the snapshots, the addresses to name, the clock and the caller."""

from dataclasses import dataclass

from access.quota import Admitted
from schemas.clock import Clock
from schemas.errors import invalid_parameter, unavailable
from schemas.vocabulary import (
    UNIVERSE_RETENTION_MS,
    Mode,
    instant,
)
from serving.argument_values import instant_ms
from serving.arguments import shown
from serving.snapshot_cache import Board, Boards

FIRST_COMPUTE_RETRY_S = 900


@dataclass(frozen=True, slots=True)
class Context:
    """The boards, the addresses to name, the wall clock (epoch ms), the billing mode, who calls.

    `caller` is None on calls that need no key.
    """

    boards: Boards
    base_url: str
    docs: str
    clock: Clock
    mode: Mode | None
    daily_limit: int
    caller: Admitted | None = None

    def called_by(self, caller: Admitted | None) -> "Context":
        """Return the same for a call of somebody."""
        return Context(
            self.boards,
            self.base_url,
            self.docs,
            self.clock,
            self.mode,
            self.daily_limit,
            caller,
        )

    async def board(self) -> Board:
        """Return the latest board; ApiError `unavailable` where nothing has been computed yet."""
        board = await self.boards.board()
        if board is None:
            raise unavailable(
                f"{await self.boards.awaited()} Retry after {FIRST_COMPUTE_RETRY_S} seconds.",
                retry_after_s=FIRST_COMPUTE_RETRY_S,
            )
        return board

    async def board_at(self, as_of: str | None) -> tuple[Board, int]:
        """Return the board that was served at an instant, the latest without one, and that time.

        The time is epoch ms. ApiError `invalid_parameter` for an instant of which nothing is known.
        """
        latest, now = await self.board(), self.clock()
        if as_of is None:
            return latest, now
        at = instant_ms("as_of", as_of)
        first = _past_from(latest)
        board = await self.boards.past(at) if first <= at <= max(now, latest.newest) else None
        if board is None:
            raise invalid_parameter(
                f"as_of: {shown(as_of)} is not a time of which a board is kept; accepted: "
                f"{instant(first)} to now ({instant(max(now, latest.newest))}); leave it out for "
                "the current board."
            )
        return board, at


def _past_from(board: Board) -> int:
    """Return the earliest time (epoch ms) of which the board can still be told."""
    kept_from = board.market_time - UNIVERSE_RETENTION_MS
    return max(board.snapshot.past_from or board.newest, kept_from)
