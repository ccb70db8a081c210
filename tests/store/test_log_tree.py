"""The Merkle tree over tiles, compared with published vectors and with another implementation.

The canonical text of rows, compared with another implementation of RFC 8785.
"""

import itertools
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
import rfc8785
from hypothesis import given, strategies as st
from tlog_scales.reader import TilesReader
from tlog_scales.tlog import ConsistencyProof, InclusionProof

from schemas.vocabulary import ACTIONS, LOGGED_IDS, TIMEFRAMES, Action
from serving.signal_rows import build_signal
from store import log_tree as tree
from store.log_tree import Range, TileId, TreeError, hash_row, render_number, render_row
from store.market_rows import AlertRow, ChangeRow, FeedRow
from tests.doubles.published_log import LEAVES, ROOTS
from tests.support.row_builders import make_change

pytestmark = pytest.mark.clause("proof")

# Hashes of nodes of the same trees.
L1 = "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7"
L4 = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"
L6 = "b08693ec2e721597130641e8211e7eedccb4c26413963eee6c1e2ed16ffb1a5f"
N23 = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e"
N45 = "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a"
N67 = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0"
N47 = "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"
N01, N03, L0 = ROOTS[1].hex(), ROOTS[3].hex(), ROOTS[0].hex()

Tiles = dict[TileId, bytes]


def build_tiles(hashes: list[bytes], *parts: int) -> Tiles:
    """Return the tiles of a tree whose leaves were appended in parts of the given sizes."""
    tiles: Tiles = {}
    size = 0
    for part in (*parts, len(hashes) - sum(parts)):
        edge = {tile: tiles[tile] for tile in tree.list_edge(size)}
        tiles |= tree.extend_tiles(edge, size, b"".join(hashes[size : size + part]))
        size += part
    return tiles


def prove(tiles: Tiles, ranges: list[Range]) -> list[bytes]:
    return tree.hash_ranges(ranges, {tile: tiles[tile] for tile in tree.list_tiles(ranges)})


def make_hashes(count: int) -> list[bytes]:
    return [sha256(b"%d" % number).digest() for number in range(count)]


class TilesInMemory:
    """The files of a log, for the other implementation."""

    def __init__(self, tiles: Tiles) -> None:
        self._tiles = tiles

    def get(self, *path: str) -> bytes | None:
        level, *elements = path[1:]
        width = 256
        if elements[-2:-1] and elements[-2].endswith(".p"):
            width = int(elements.pop())
        number = int("".join(element.strip("x.p") for element in elements))
        found = self._tiles.get(TileId(int(level), number), b"")[: 32 * width]
        return found if len(found) == 32 * width else None


def test_an_empty_tree_has_the_hash_of_nothing() -> None:
    assert sha256(b"").digest() == tree.EMPTY_ROOT
    assert tree.list_edge(0) == []


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_are_those_of_certificate_transparency(size: int) -> None:
    tiles = build_tiles([*map(tree.hash_leaf, LEAVES)], 3)
    assert prove(tiles, [Range(0, size)]) == [ROOTS[size - 1]]


@pytest.mark.parametrize(
    ("list_ranges", "old", "size", "expected"),
    [
        (tree.list_inclusion_ranges, 0, 1, []),
        (tree.list_inclusion_ranges, 0, 8, [L1, N23, N47]),
        (tree.list_inclusion_ranges, 5, 8, [L4, N67, N03]),
        (tree.list_inclusion_ranges, 2, 3, [N01]),
        (tree.list_inclusion_ranges, 1, 5, [L0, N23, L4]),
        (tree.list_consistency_ranges, 0, 8, []),
        (tree.list_consistency_ranges, 1, 1, []),
        (tree.list_consistency_ranges, 1, 8, [L1, N23, N47]),
        (tree.list_consistency_ranges, 2, 8, [N23, N47]),
        (tree.list_consistency_ranges, 6, 8, [N45, N67, N03]),
        (tree.list_consistency_ranges, 2, 5, [N23, L4]),
        (tree.list_consistency_ranges, 6, 7, [N45, L6, N03]),
    ],
)
def test_proofs_are_those_of_certificate_transparency(
    list_ranges: Callable[[int, int], list[Range]], old: int, size: int, expected: list[str]
) -> None:
    proof = prove(build_tiles([*map(tree.hash_leaf, LEAVES)]), list_ranges(old, size))
    assert [each.hex() for each in proof] == expected
    if list_ranges is tree.list_consistency_ranges and 0 < old < size:
        tree.verify_consistency(old, ROOTS[old - 1], size, ROOTS[size - 1], proof)


def test_tiles_are_those_of_the_example_in_the_specification() -> None:
    size = 70_000
    tiles = build_tiles([bytes(32)] * size, 1, 255, 256, 60_000)
    widths = [tree.find_width(tile, size) for tile in tree.list_edge(size)]
    assert list(zip(tree.list_edge(size), widths, strict=True)) == [
        ((0, 273), 112),
        ((1, 1), 17),
        ((2, 0), 1),
    ]
    assert {tile: len(hashes) // 32 for tile, hashes in tiles.items()} == {
        **{TileId(0, number): 256 for number in range(273)},
        TileId(0, 273): 112,
        TileId(1, 0): 256,
        TileId(1, 1): 17,
        TileId(2, 0): 1,
    }


def test_the_width_of_a_tile_follows_from_the_size_of_the_tree() -> None:
    assert [tree.find_width(TileId(0, 1), size) for size in (256, 257, 511, 512, 900)] == [
        *(0, 1, 255, 256, 256)
    ]
    assert [tree.find_width(TileId(1, 0), size) for size in (255, 256, 70_000)] == [0, 1, 256]


@given(st.lists(st.integers(1, 700), min_size=1, max_size=5), st.data())
@pytest.mark.prove
def test_proofs_of_any_tree_verify_with_another_implementation(
    parts: list[int], data: st.DataObject
) -> None:
    hashes = make_hashes(sum(parts))
    tiles, sizes = build_tiles(hashes, *parts[:-1]), list(itertools.accumulate(parts))
    for old, size in itertools.combinations(sizes, 2):
        old_root, root = prove(tiles, [Range(0, old)])[0], prove(tiles, [Range(0, size)])[0]
        reader = TilesReader(TilesInMemory(tiles))
        reader.set_size(size)
        assert root == reader.calculate_root_hash()
        proof = prove(tiles, tree.list_consistency_ranges(old, size))
        ConsistencyProof(old, size, proof).check(old_root, root)
        tree.verify_consistency(old, old_root, size, root, proof)
    size = sizes[-1]
    leaf = data.draw(st.integers(0, size - 1))
    proof = prove(tiles, tree.list_inclusion_ranges(leaf, size))
    root = prove(tiles, [Range(0, size)])[0]
    InclusionProof(leaf, size, proof).check(hashes[leaf], root)


@pytest.mark.parametrize("old", [3, 4])
def test_a_tree_that_lost_or_changed_a_leaf_is_not_consistent(old: int) -> None:
    hashes = make_hashes(9)
    old_root = prove(build_tiles(hashes), [Range(0, old)])[0]
    for changed in (hashes[1:], [hashes[1], hashes[0], *hashes[2:]]):
        tiles, size = build_tiles(changed), len(changed)
        root, proof = (
            prove(tiles, [Range(0, size)])[0],
            prove(tiles, tree.list_consistency_ranges(old, size)),
        )
        with pytest.raises(TreeError, match="does not begin with that of"):
            tree.verify_consistency(old, old_root, size, root, proof)


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        *(
            (partial(tree.list_inclusion_ranges, *place), ValueError, "leaf must be below the size")
            for place in ((3, 3), (-1, 3), (0, 0))
        ),
        (partial(tree.list_consistency_ranges, 4, 3), ValueError, "old must be at most the size"),
        *(
            (
                partial(tree.hash_ranges, [Range(0, 2)], tiles),
                *(TreeError, "tile 0/0 is missing or too short"),
            )
            for tiles in ({}, {TileId(0, 0): bytes(32)})
        ),
    ],
)
def test_what_a_tree_does_not_have_is_refused(
    call: Callable[[], object], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        call()


COVERED = (
    *("id", "tier", "ticker", "indicator", "timeframe", "direction", "transition", "change_type"),
    *("action", "price", "created_at"),
)
READINGS = [(None, 0), (None, 1), (-1, 1), (1, -1), (0, 1), (0, -1), (1, 0), (-1, 0)]
TICKERS = st.text("ABCXYZ0189", min_size=1, max_size=12)
# From 2001 to 2286.
TIMES = st.integers(10**12, 10**13 - 1)
PRICES = st.floats(min_value=0, allow_infinity=False) | st.integers(0, 2**53).map(float)


def serve(row: FeedRow) -> dict[str, Any]:
    """Return the covered members of a row as it is served."""
    signal = build_signal(row, "crypto", "An indicator").model_dump(by_alias=True)
    return {name: signal[name] for name in COVERED}


@given(
    st.builds(
        lambda at, ticker, indicator, timeframe, epoch, readings, price: ChangeRow(
            at, ticker, indicator, timeframe, at // 1000, epoch, *readings, price, True
        ),
        *(TIMES, TICKERS, st.sampled_from(LOGGED_IDS), st.sampled_from(TIMEFRAMES)),
        *(st.integers(0, 99), st.sampled_from(READINGS), PRICES),
    ),
    st.sampled_from(ACTIONS),
)
def test_the_text_of_a_row_is_canonical_json_of_the_row_as_served(
    row: ChangeRow, action: Action
) -> None:
    assert render_row(row) == rfc8785.dumps(serve(row))
    alert = AlertRow(*row[:2], "perpkit", *row[3:6], action, row.price)
    assert render_row(alert) == rfc8785.dumps(serve(alert))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_written_as_ecmascript_writes_them(value: float) -> None:
    assert render_number(value).encode() == rfc8785.dumps(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (97000.0, "97000"),
        (-0.0, "0"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e-6, "0.000001"),
        (1.5e-7, "1.5e-7"),
        (1e16, "10000000000000000"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
    ],
)
def test_numbers_at_the_bounds_of_the_plain_form(value: float, text: str) -> None:
    assert render_number(value) == text


def test_a_leaf_is_the_hash_of_a_zero_byte_the_salt_and_the_text() -> None:
    row = make_change(1_780_000_000_000, before=-1, close_time=1_779_999_600)
    text = (
        '{"action":null,"change_type":"reversal","created_at":"2026-05-28T20:26:40.000Z",'
        '"direction":"bullish","id":"universe.BTC.enzo.1h.1779999600.0","indicator":"enzo",'
        '"price":0.3,"ticker":"BTC","tier":"universe","timeframe":"1h",'
        '"transition":{"from":"bearish","to":"bullish"}}'
    )
    salt = bytes(range(16))
    assert hash_row(row, salt) == sha256(b"\0" + salt + text.encode()).digest()
