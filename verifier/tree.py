"""Hashes of Merkle trees as in RFC 6962. Pure."""

import hashlib
from collections.abc import Sequence

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
    root = peaks[-1]
    for peak in reversed(peaks[:-1]):
        root = hash_children(peak, root)
    return root


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
