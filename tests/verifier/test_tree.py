"""Merkle trees as in RFC 6962, and tiles that the library tlog-scales wrote."""

import base64
from pathlib import Path

import pytest
from tlog_scales.backend import LocalBackend
from tlog_scales.reader import TilesReader
from tlog_scales.signing import PlainEd25519Signer
from tlog_scales.writer import TilesWriter

from tests.doubles.published_log import LEAVES, ROOTS
from verifier.notes import Checkpoint, InclusionProof, NoteError
from verifier.tree import (
    EMPTY_ROOT,
    TileTree,
    TreeMismatchError,
    combine_peaks,
    format_tile_path,
    hash_complete_subtree,
    hash_leaf,
    is_included,
    list_peaks,
    split_tile,
)

pytestmark = pytest.mark.clause("verify")

# Leaf index, tree size, path.
PATHS = [
    (0, 1, []),
    (
        0,
        8,
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        5,
        8,
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (2, 3, ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
    (
        1,
        5,
        [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
]


def hash_entry(index: int) -> bytes:
    return hash_leaf(LEAVES[index])


def compute_root(size: int) -> bytes:
    leaves = [hash_entry(index) for index in range(size)]
    return combine_peaks(
        [
            hash_complete_subtree(leaves[index << level : (index + 1) << level])
            for level, index in list_peaks(size)
        ]
    )


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_are_those_of_the_reference_implementation(size):
    assert compute_root(size) == ROOTS[size - 1]


def test_the_root_of_an_empty_tree_is_the_hash_of_nothing():
    assert compute_root(0) == EMPTY_ROOT
    assert EMPTY_ROOT.hex().startswith("e3b0c44298fc1c149afbf4c8996fb924")


@pytest.mark.parametrize(("index", "size", "path"), PATHS)
def test_proofs_of_the_reference_implementation_verify_and_altered_ones_do_not(index, size, path):
    hashes = [bytes.fromhex(one) for one in path]
    root = ROOTS[size - 1]
    leaf = hash_entry(index)
    assert is_included(leaf, index, size, hashes, root)
    other = bytes(32)
    assert not is_included(other, index, size, hashes, root)
    assert not is_included(leaf, index, size, hashes, other)
    assert not is_included(leaf, index, size, [*hashes, other], root)
    assert not is_included(leaf, size, size, hashes, root)
    assert not is_included(leaf, -1, size, hashes, root)
    for place in range(len(hashes)):
        assert not is_included(leaf, index, size, hashes[:place] + hashes[place + 1 :], root)
        replaced = [*hashes[:place], other, *hashes[place + 1 :]]
        assert not is_included(leaf, index, size, replaced, root)


SIGNER = PlainEd25519Signer("example.com/log", bytes(range(32)))
SIZES = [1, 2, 7, 255, 256, 257, 511, 512, 700]
LARGE = 65_536 + 256 + 3


def make_entry(index: int) -> bytes:
    return index.to_bytes(4, "big")


def write_log(folder: Path, size: int) -> Path:
    writer = TilesWriter.create(folder / "log", "example.com/log")
    for index in range(size):
        writer.add_leaf(make_entry(index))
    writer.commit([SIGNER])
    return writer.root


def open_tree(folder: Path, read: list[str] | None = None) -> TileTree:
    """Open the tree of the checkpoint in a folder; `read` collects the paths of its tiles."""
    checkpoint = Checkpoint.parse((folder / "checkpoint").read_text())

    async def fetch_tile(level: int, number: int, width: int) -> list[bytes]:
        path = format_tile_path(level, number, width)
        (read if read is not None else []).append(path)
        return split_tile((folder / path).read_bytes())

    return TileTree(checkpoint.size, checkpoint.root, fetch_tile)


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        ((0, 0, 256), "tile/0/000"),
        ((1, 7, 5), "tile/1/007.p/5"),
        ((2, 1_234_067, 256), "tile/2/x001/x234/067"),
        ((0, 1000, 112), "tile/0/x001/000.p/112"),
    ],
)
def test_paths_of_tiles_are_those_of_the_specification(tile, path):
    assert format_tile_path(*tile) == path


@pytest.mark.parametrize("size", SIZES)
async def test_every_earlier_root_is_that_of_the_other_implementation(tmp_path, size):
    folder = write_log(tmp_path, size)
    tree = open_tree(folder)
    await tree.check_root()
    other = TilesReader(LocalBackend(folder))
    other.set_size(size)
    for earlier in {0, 1, size // 2, size - 1, size} | {256} & set(range(size)):
        assert await tree.compute_root(earlier) == other.mth(0, earlier)
    leaves = [hash_leaf(make_entry(index)) for index in range(size)]
    assert await tree.read_leaf_hashes(0, size) == leaves
    assert await tree.read_leaf_hashes(size // 3, size // 2) == leaves[size // 3 : size // 2]


@pytest.mark.prove
async def test_a_tree_of_three_levels_is_read_with_few_tiles(tmp_path):
    folder, read = write_log(tmp_path, LARGE), []
    tree = open_tree(folder, read)
    await tree.check_root()
    assert read == ["tile/0/257.p/3", "tile/1/001.p/1", "tile/2/000.p/1"]
    other = TilesReader(LocalBackend(folder))
    other.set_size(LARGE)
    for earlier in (1, 256, 65_535, 65_536, 65_537, LARGE - 1):
        assert await tree.compute_root(earlier) == other.mth(0, earlier)
    read.clear()
    assert await tree.read_leaf_hashes(65_000, 65_600) == [
        hash_leaf(make_entry(index)) for index in range(65_000, 65_600)
    ]
    # The tiles 255 and 256 were read for earlier roots.
    assert sorted(read) == ["tile/0/253", "tile/0/254"]


@pytest.mark.parametrize("path", ["tile/0/257.p/3", "tile/1/001.p/1", "tile/2/000.p/1"])
@pytest.mark.prove
async def test_an_altered_tile_at_the_edge_contradicts_the_root(tmp_path, path):
    folder = write_log(tmp_path, LARGE)
    alter_byte(folder / path)
    with pytest.raises(TreeMismatchError, match="another root than the signed checkpoint"):
        await open_tree(folder).check_root()


@pytest.mark.parametrize("path", ["tile/0/003", "tile/1/000"])
@pytest.mark.prove
async def test_an_altered_tile_inside_the_tree_is_named(tmp_path, path):
    folder = write_log(tmp_path, LARGE)
    alter_byte(folder / path)
    tree = open_tree(folder)
    await tree.check_root()
    with pytest.raises(TreeMismatchError, match=f"{path} does not belong"):
        await tree.read_leaf_hashes(256 * 3, 256 * 3 + 1)


def alter_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def make_proof(folder: Path, index: int, extra: str = "") -> str:
    checkpoint = (folder / "checkpoint").read_text()
    other = TilesReader(LocalBackend(folder))
    size = other.get_checkpoint().size
    path = other.get_inclusion_proof(index, size).node_hashes
    lines = [base64.b64encode(one).decode() for one in path]
    return "\n".join(["c2sp.org/tlog-proof@v1", *extra.splitlines(), f"index {index}", *lines]) + (
        f"\n\n{checkpoint}"
    )


@pytest.mark.parametrize("size", SIZES)
def test_proofs_of_the_other_implementation_verify(tmp_path, size):
    folder = write_log(tmp_path, size)
    for index in {0, size // 2, size - 1}:
        proof = InclusionProof.parse(make_proof(folder, index, "extra AAEC"))
        assert (proof.index, proof.salt, proof.checkpoint.size) == (index, b"\x00\x01\x02", size)
        assert proof.includes(hash_leaf(make_entry(index)))
        assert not proof.includes(hash_leaf(make_entry(index + 1)))
    assert InclusionProof.parse(make_proof(folder, 0)).salt == b""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("tlog-proof@v1", "tlog-proof@v2", "the first line of a proof is"),
        ("index 3\n", "", "no index line"),
        ("index 3", "index 03", "'03' is not a number"),
        ("index 3\n", "index 3\n?\n", "'\\?' is not base64"),
        ("extra AAEC", "extra A", "'A' is not base64"),
        ("example.com/log\n", "", "a checkpoint needs"),
    ],
)
def test_a_malformed_proof_is_refused_with_the_reason(tmp_path, old, new, reason):
    text = make_proof(write_log(tmp_path, 7), 3, "extra AAEC")
    with pytest.raises(NoteError, match=reason):
        InclusionProof.parse(text.replace(old, new, 1))
