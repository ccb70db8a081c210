"""The readings of all cells at any time, in memory: a log of changes with whole boards in between.

A cell is a number: those of an asset are adjacent, in the order of STORED_KEYS and of timeframes. A
board has a byte for each cell: 0 without a reading, else the reading + 2.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from struct import iter_unpack

from schemas.vocabulary import STORED_KEYS, TIMEFRAMES, Timeframe
from store.codes import KEY_CODES, TIMEFRAMES_BY_CODE

# A board is rebuilt from the last whole one by half as many changes on average, in some 30 us.
CHANGES_PER_BOARD = 2048
BYTES_PER_CHANGE = 13
CELLS_PER_KEY = len(TIMEFRAMES)
CELLS_PER_ASSET = CELLS_PER_KEY * len(STORED_KEYS)
FIRST_CELLS = {KEY_CODES[key]: CELLS_PER_KEY * n for n, key in enumerate(STORED_KEYS)}

Cells = dict[Timeframe, int]
Readings = dict[str, dict[str, Cells]]

# The readings of every possible piece of a board, shared by all boards; None without a reading.
CELLS_BY_PIECE: dict[bytes, Cells | None] = {
    bytes(piece): {TIMEFRAMES_BY_CODE[code]: byte - 2 for code, byte in enumerate(piece) if byte}
    or None
    for piece in product(range(4), repeat=CELLS_PER_KEY)
}


@dataclass(slots=True)
class _Segment:
    """Some changes in order of time, and the board before them."""

    board: bytes
    times: "array[int]" = field(default_factory=lambda: array("q"))
    cells: "array[int]" = field(default_factory=lambda: array("I"))
    readings: bytearray = field(default_factory=bytearray)


class BoardLog:
    """The changes of all readings since a time; the oldest ones can be dropped."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._board = bytearray()
        # The first cell of each asset, by its id.
        self._first_cells: dict[int, int] = {}
        self.begins = 0
        self.size_bytes = 0

    def append(self, rows: Iterable[Sequence[int]]) -> None:
        """Append rows of `PastLog.load_readings`, which are later than all before."""
        for created_at, asset_id, indicator, timeframe, reading in rows:
            first = self._first_cells.get(asset_id)
            if first is None:
                first = self._first_cells[asset_id] = len(self._board)
                self._board.extend(bytes(CELLS_PER_ASSET))
            if not self._segments or len(self._segments[-1].times) == CHANGES_PER_BOARD:
                self._segments.append(_Segment(bytes(self._board)))
                self.size_bytes += len(self._board) + CHANGES_PER_BOARD * BYTES_PER_CHANGE
            cell, byte = first + FIRST_CELLS[indicator] + timeframe, reading + 2
            self._board[cell] = byte
            segment = self._segments[-1]
            segment.times.append(created_at)
            segment.cells.append(cell)
            segment.readings.append(byte)

    def drop_oldest(self) -> bool:
        """Drop some of the oldest changes; return False if there are none but the newest ones."""
        if len(self._segments) < 2:
            return False
        dropped = self._segments.pop(0)
        self.size_bytes -= len(dropped.board) + CHANGES_PER_BOARD * BYTES_PER_CHANGE
        self.begins = self._segments[0].times[0]
        return True

    def get_readings(self, at: int, tickers: Mapping[int, str]) -> Readings:
        """Return the readings at a time (epoch ms, `begins` or later) by ticker, key and timeframe.

        `tickers` has the ticker of each asset by its id.
        """
        board = self._rebuild_board(at)
        pieces = [CELLS_BY_PIECE[piece] for (piece,) in iter_unpack(f"{CELLS_PER_KEY}s", board)]
        readings: Readings = {}
        for asset_id, first in self._first_cells.items():
            own = pieces[first // CELLS_PER_KEY : (first + CELLS_PER_ASSET) // CELLS_PER_KEY]
            cells = zip(STORED_KEYS, own, strict=True)
            keys: dict[str, Cells] = {key: each for key, each in cells if each}
            # An asset of a commit that is being read has no ticker yet, and no readings then.
            if keys and asset_id in tickers:
                readings[tickers[asset_id]] = keys
        return readings

    def _rebuild_board(self, at: int) -> bytes | bytearray:
        after = bisect_right(self._segments, at, key=lambda segment: segment.times[0])
        if not after:
            return bytes(len(self._board))
        segment = self._segments[after - 1]
        # Assets that came later have no cells in the segment's board.
        board = bytearray(segment.board.ljust(len(self._board), b"\0"))
        count = bisect_right(segment.times, at)
        for cell, byte in zip(segment.cells[:count], segment.readings[:count], strict=True):
            board[cell] = byte
        return board
