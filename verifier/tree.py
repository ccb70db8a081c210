"""Merkle trees of RFC 6962, and their tiles of C2SP tlog-tiles, each checked against the root."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import reduce

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()


def hash_leaf(entry: bytes) -> bytes:
    """Return the hash of a leaf's entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def hash_children(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def hash_complete_subtree(hashes: Sequence[bytes]) -> bytes:
    """Return the root above nodes of one level, whose count is a power of two."""
    while len(hashes) > 1:
        hashes = [hash_children(*hashes[i : i + 2]) for i in range(0, len(hashes), 2)]
    return hashes[0]


def list_peaks(size: int) -> list[tuple[int, int]]:
    """Return the largest complete subtrees of a tree from left to right, each (level, index).

    A subtree of level b has 2**b leaves, the first of which is leaf index * 2**b.
    """
    levels = [level for level in reversed(range(size.bit_length())) if size >> level & 1]
    return [(level, (size >> level) - 1) for level in levels]


def combine_peaks(peaks: Sequence[bytes]) -> bytes:
    """Return the root of the tree with these complete subtrees, from left to right."""
    if not peaks:
        return EMPTY_ROOT
    return reduce(lambda root, peak: hash_children(peak, root), reversed(peaks))


def is_included(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Return whether an inclusion proof leads from the hash of a leaf to a root (RFC 9162)."""
    if not 0 <= index < size:
        return False
    place, last, node = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if place & 1 or place == last:
            node = hash_children(sibling, node)
            # The last node of a level without a sibling moves up unchanged.
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            node = hash_children(node, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and node == root


TILE_WIDTH, TILE_LEVELS = 256, 8

Hashes = list[bytes]
# By level and number.
Tiles = dict[tuple[int, int], Hashes]
# Takes the level, the number and the width of a tile.
FetchTile = Callable[[int, int, int], Awaitable[Hashes]]
# Takes the level and the number of a tile that is at hand.
GetTile = Callable[[int, int], Hashes]


class TreeMismatchError(Exception):
    """A tile with other hashes than the signed root commits to."""


def format_tile_path(level: int, number: int, width: int) -> str:
    """Return the path of a tile below the log's address, such as tile/0/x001/067.p/112."""
    parts = [f"{number % 1000:03d}"]
    while number := number // 1000:
        parts.insert(0, f"x{number % 1000:03d}")
    suffix = "" if width == TILE_WIDTH else f".p/{width}"
    return f"tile/{level}/{'/'.join(parts)}{suffix}"


def split_tile(content: bytes) -> Hashes:
    """Return the hashes in the content of a tile."""
    return [content[i : i + HASH_BYTES] for i in range(0, len(content), HASH_BYTES)]


class TileTree:
    """The hashes of one tree. Reads each tile once, and checks it against the root."""

    def __init__(self, size: int, root: bytes, fetch_tile: FetchTile) -> None:
        self.size = size
        self._root = root
        self._fetch_tile = fetch_tile
        # Every tile that was checked.
        self.tiles: Tiles = {}

    async def check_root(self) -> None:
        """Read the tiles at the right edge of the tree, which determine its root.

        Raise TreeMismatchError if they have another root. Every other method needs this first.
        """
        edge: Tiles = {}
        for level in range(-(-self.size.bit_length() // TILE_LEVELS)):
            number, width = divmod(self.size >> TILE_LEVELS * level, TILE_WIDTH)
            if width:
                edge[level, number] = await self._fetch_tile(level, number, width)
        if _hash_range(lambda *place: edge[place], 0, self.size) != self._root:
            raise TreeMismatchError("the tiles have another root than the signed checkpoint")
        self.tiles = edge

    async def compute_root(self, size: int) -> bytes:
        """Return the root that the tree had when it had `size` leaves, at most its own size."""
        peaks = list_peaks(size)
        for level, index in peaks:
            await self._read_tile(level // TILE_LEVELS, _find_tile(level, index))
        return _hash_range(lambda *place: self.tiles[place], 0, size)

    async def read_leaf_hashes(self, start: int, end: int) -> Hashes:
        """Return the hashes of the leaves from `start` up to, but not including, `end`."""
        if start >= end:
            return []
        first = start // TILE_WIDTH
        numbers = range(first, (end - 1) // TILE_WIDTH + 1)
        # Otherwise all tiles below one would fetch it at the same time.
        for above in {n // TILE_WIDTH for n in numbers if (0, n) not in self.tiles}:
            await self._read_tile(1, above)
        tiles = await asyncio.gather(*(self._read_tile(0, number) for number in numbers))
        hashes = [one for tile in tiles for one in tile]
        return hashes[start - first * TILE_WIDTH : end - first * TILE_WIDTH]

    async def _read_tile(self, level: int, number: int) -> Hashes:
        """Return a tile whose hash is the one in the tile above it."""
        place = level, number
        if place not in self.tiles:
            above, position = divmod(number, TILE_WIDTH)
            parent = await self._read_tile(level + 1, above)
            tile = await self._fetch_tile(level, number, TILE_WIDTH)
            if hash_complete_subtree(tile) != parent[position]:
                path = format_tile_path(level, number, TILE_WIDTH)
                raise TreeMismatchError(f"{path} does not belong to the signed checkpoint")
            self.tiles[place] = tile
        return self.tiles[place]


def _find_tile(level: int, index: int) -> int:
    """Return the number of the tile that holds the nodes below a subtree, or the node itself."""
    return (index << level % TILE_LEVELS) // TILE_WIDTH


def _hash_range(get_tile: GetTile, start: int, end: int) -> bytes:
    """Return the root over the leaves of a range that begins at one of the tree's subtrees."""
    peaks = []
    for level, index in list_peaks(end - start):
        tile_level, height = divmod(level, TILE_LEVELS)
        first = (start >> level) + index
        tile = get_tile(tile_level, _find_tile(level, first))
        place = (first << height) % TILE_WIDTH
        if len(tile) < place + (1 << height):
            raise LookupError("a tile is too short")
        peaks.append(hash_complete_subtree(tile[place : place + (1 << height)]))
    return combine_peaks(peaks)


def list_proof(get_tile: GetTile, index: int, size: int) -> Hashes:
    """Return the inclusion proof of a leaf, from the leaf to the root (RFC 6962, PATH).

    LookupError if a tile is too short.
    """
    path, start, end = [], 0, size
    while end - start > 1:
        middle = start + (1 << (end - start - 1).bit_length() - 1)
        other = (middle, end) if index < middle else (start, middle)
        start, end = (start, middle) if index < middle else (middle, end)
        path.append(_hash_range(get_tile, *other))
    return path[::-1]
