"""The transparency log as pure functions: the canonical texts of its leaves, and its Merkle tree.

The tree is that of RFC 6962, over tiles as C2SP's tlog-tiles defines them. A tile has up to 256
hashes of 32 bytes: those of leaves at level 0, and at each further level the hashes of the full
tiles below. A range is a half-open range of leaves.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, reduce
from hashlib import sha256
from typing import Final, NamedTuple

from schemas.vocabulary import ACTION_DIRECTIONS, READING_NAMES, classify_change, format_instant
from store.market_rows import AlertRow, FeedRow

HASH_BYTES = 32
TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT
TILE_BYTES = TILE_WIDTH * HASH_BYTES
EMPTY_ROOT = sha256().digest()


class TileId(NamedTuple):
    """The level of a tile, and its number within the level."""

    level: int
    number: int


class Range(NamedTuple):
    """The leaves from `start` on, before `end`."""

    start: int
    end: int


Tiles = Mapping[TileId, bytes]


class TreeError(Exception):
    """Tiles or hashes that do not make up a tree."""


def hash_leaf(entry: bytes) -> bytes:
    """Return the hash of a leaf with this content."""
    return sha256(b"\0" + entry).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node with two children."""
    return sha256(b"\1" + left + right).digest()


def extend_tiles(edge: Tiles, size: int, hashes: bytes) -> dict[TileId, bytes]:
    """Return the tiles that leaves change or add, given by their joined hashes.

    `edge` has the partial tiles of the tree of `size` leaves, as `list_edge` names them.
    """
    changed: dict[TileId, bytes] = {}
    level, first = 0, size
    while hashes:
        number = first >> TILE_HEIGHT
        joined = edge.get(TileId(level, number), b"") + hashes
        parts = [joined[at : at + TILE_BYTES] for at in range(0, len(joined), TILE_BYTES)]
        changed |= {TileId(level, number + place): part for place, part in enumerate(parts)}
        hashes = b"".join(_hash_row(part) for part in parts if len(part) == TILE_BYTES)
        level, first = level + 1, number
    return changed


def list_edge(size: int) -> list[TileId]:
    """Return the partial tiles of a tree, one per level at most."""
    levels = range(-(-size.bit_length() // TILE_HEIGHT))
    widths = ((level, size >> TILE_HEIGHT * level) for level in levels)
    return [TileId(level, count >> TILE_HEIGHT) for level, count in widths if count % TILE_WIDTH]


def find_width(tile: TileId, size: int) -> int:
    """Return how many hashes a tile has in a tree of `size` leaves, 0 if the tree lacks it."""
    count = (size >> TILE_HEIGHT * tile.level) - TILE_WIDTH * tile.number
    return max(0, min(TILE_WIDTH, count))


def list_inclusion_ranges(leaf: int, size: int) -> list[Range]:
    """Return the ranges whose hashes prove a leaf, from its sibling up to a child of the root."""
    if not 0 <= leaf < size:
        raise ValueError(f"leaf must be below the size {size}: {leaf}")
    whole = Range(0, size)
    siblings: list[Range] = []
    while whole.end - whole.start > 1:
        left, right = _halve(whole)
        whole, sibling = (left, right) if leaf < left.end else (right, left)
        siblings.append(sibling)
    return siblings[::-1]


def list_consistency_ranges(old: int, size: int) -> list[Range]:
    """Return the ranges whose hashes prove that a tree of `old` leaves is a part of another."""
    if not 0 <= old <= size:
        raise ValueError(f"old must be at most the size {size}: {old}")
    if old in (0, size):
        return []
    whole = Range(0, size)
    siblings: list[Range] = []
    while whole.end != old:
        left, right = _halve(whole)
        whole, sibling = (left, right) if old <= left.end else (right, left)
        siblings.append(sibling)
    # The last part of the old tree, unless that is complete.
    return [*([whole] if whole.start else []), *siblings[::-1]]


def list_tiles(ranges: Iterable[Range]) -> set[TileId]:
    """Return the tiles from which the hashes of ranges are computed."""
    return {tile for each in ranges for tile, _ in _split(each)}


def hash_ranges(ranges: Iterable[Range], tiles: Tiles) -> list[bytes]:
    """Return the hash of each range; TreeError if a tile is missing or too short."""
    found = []
    for each in ranges:
        # A range begins where `_halve` may cut.
        parts = []
        for tile, part in _split(each):
            hashes = tiles.get(tile, b"")[part]
            if len(hashes) != part.stop - part.start:
                raise TreeError(f"tile {tile.level}/{tile.number} is missing or too short")
            parts.append(_hash_row(hashes))
        found.append(reduce(lambda right, left: hash_node(left, right), reversed(parts)))
    return found


def verify_consistency(
    old: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]
) -> None:
    """Raise TreeError unless a proof shows that an old tree is the beginning of another one.

    `old` is above 0 and below `size`.
    """
    ranges, whole = list_consistency_ranges(old, size), Range(0, old)
    hashes = dict(zip(ranges, proof, strict=True))
    # A proof leaves out the root of an old tree that is complete.
    if old & (old - 1) == 0:
        hashes[whole] = old_root
    if (_fold(whole, hashes), _fold(Range(0, size), hashes)) != (old_root, root):
        raise TreeError(f"the tree of {size} leaves does not begin with that of {old} leaves")


# A root and its proof share parts of tiles, and so do the trees of two runs.
@lru_cache(maxsize=32)
def _hash_row(hashes: bytes) -> bytes:
    """Return the root over joined hashes, whose number is a power of two."""
    row = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
    while len(row) > 1:
        row = [hash_node(*pair) for pair in zip(row[::2], row[1::2], strict=True)]
    return row[0]


def _halve(whole: Range) -> tuple[Range, Range]:
    """Split a range of several leaves, the left part being the largest complete tree."""
    middle = whole.start + (1 << (whole.end - whole.start - 1).bit_length() - 1)
    return Range(whole.start, middle), Range(middle, whole.end)


def _split(whole: Range) -> Iterator[tuple[TileId, slice]]:
    """Yield the complete trees of a range, largest first, each as the part of a tile."""
    start = whole.start
    while start < whole.end:
        height = (whole.end - start).bit_length() - 1
        level, lower = divmod(height, TILE_HEIGHT)
        number, place = divmod(start >> TILE_HEIGHT * level, TILE_WIDTH)
        first = HASH_BYTES * place
        yield TileId(level, number), slice(first, first + (HASH_BYTES << lower))
        start += 1 << height


def _fold(whole: Range, hashes: Mapping[Range, bytes]) -> bytes:
    """Return the hash of a range from those of its parts."""
    known = hashes.get(whole)
    if known is not None:
        return known
    left, right = _halve(whole)
    return hash_node(_fold(left, hashes), _fold(right, hashes))


# The first leaf has the kind of the data and the first start, so that rows from before it are
# known. The text is JSON as RFC 8785 defines it, of the members that a row has by itself: the names
# of indicators and the classes of assets come from the catalog, and may change.
SALT_BYTES = 16
# ECMAScript writes numbers in this range without an exponent.
MIN_PLAIN, MAX_PLAIN = 1e-6, 1e21
# Listed as the time of the first leaf, which is before that of any row (epoch ms).
START_AT: Final = 1
# The largest cells of a run, and the seconds in which its rows are written.
MAX_CACHED = 8192


class LogStart(NamedTuple):
    """The kind of the data of a store, and the time of its first start (epoch ms)."""

    source: str
    started_at: int

    @classmethod
    def from_facts(cls, facts: Mapping[str, str]) -> "LogStart | None":
        """Return the start that a store remembers, None if it has none yet."""
        name, started_at = (facts.get(key, "") for key in ("source", "started_at"))
        if not (name and started_at.isdecimal()):
            return None
        # The rest of the name is the seed of a simulation, or the folder of a recording.
        kinds = {"files": "recorded", "simulated": "simulated"}
        return cls(kinds.get(name.partition(":")[0], "live"), int(started_at))

    def render(self) -> bytes:
        """Return the canonical text."""
        at = format_instant(self.started_at)
        return f'{{"source":"{self.source}","started_at":"{at}"}}'.encode()


def hash_row(row: FeedRow, salt: bytes) -> bytes:
    """Return the hash of a row's leaf, whose content is 16 bytes of salt and the text."""
    return hash_leaf(salt + render_row(row))


def render_row(row: FeedRow) -> bytes:
    """Return the canonical text of a row, whose ticker needs no escapes in JSON."""
    # One format string per row: the log hashes all rows of a year at once, so each microsecond
    # counts.
    if isinstance(row, AlertRow):
        at, ticker, indicator, timeframe, closed, epoch, action, price = row
        text = (
            f'{{"action":"{action}","change_type":null,"created_at":"{_render_time(at)}",'
            f'"direction":"{ACTION_DIRECTIONS[action]}","id":"alerts.{ticker}.{indicator}.'
            f'{timeframe}.{closed}.{action}.{epoch}","indicator":"{indicator}",'
            f'"price":{render_number(price)},"ticker":"{ticker}","tier":"alerts",'
            f'"timeframe":"{timeframe}","transition":null}}'
        )
    else:
        at, ticker, indicator, timeframe, closed, epoch, before, after, price, _ = row
        change_type, direction, transition = _render_readings(before, after)
        text = (
            f'{{"action":null,"change_type":{change_type},"created_at":"{_render_time(at)}",'
            f'"direction":"{direction}","id":"universe.{ticker}.{indicator}.{timeframe}.{closed}.'
            f'{epoch}","indicator":"{indicator}","price":{render_number(price)},'
            f'"ticker":"{ticker}","tier":"universe","timeframe":"{timeframe}",'
            f'"transition":{transition}}}'
        )
    return text.encode()


@lru_cache
def _render_readings(before: int | None, after: int) -> tuple[str, str, str]:
    """Return the JSON of `change_type`, the name of `direction` and the JSON of `transition`."""
    direction = READING_NAMES[after]
    if before is None:
        return "null", direction, "null"
    transition = f'{{"from":"{READING_NAMES[before]}","to":"{direction}"}}'
    return f'"{classify_change(before, after)}"', direction, transition


def _render_time(created_at: int) -> str:
    seconds, milliseconds = divmod(created_at, 1000)
    return f"{_render_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(MAX_CACHED)
def _render_second(seconds: int) -> str:
    return format_instant(1000 * seconds).partition(".")[0]


def render_number(value: float) -> str:
    """Return a finite number as ECMAScript writes it."""
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2] if value else "0"
    if "e" not in text:
        return text
    if MIN_PLAIN <= abs(value) < MAX_PLAIN:
        return f"{Decimal(text):f}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent):+d}"
