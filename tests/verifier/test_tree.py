"""Tree hashes and inclusion proofs, against vectors of the reference implementation of RFC 6962."""

import pytest

from tests.support.rfc6962_vectors import LEAVES, ROOTS
from verifier.tree import (
    EMPTY_ROOT,
    combine_peaks,
    hash_complete_subtree,
    hash_leaf,
    is_included,
    list_peaks,
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
