"""Checks the transparency log against the published rows, and its checkpoint against it. Pure."""

from base64 import b64decode
from collections.abc import Iterator, Sequence

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from compute.signing.log_signer import LogKey
from compute.signing.notes import KEY_ID_BYTES, Checkpoint, NoteError, Vkey
from store.log_leaves import SALT_BYTES, hash_row
from store.log_tree import (
    EMPTY_ROOT,
    HASH_BYTES,
    Range,
    Tiles,
    TreeError,
    extend_tiles,
    hash_ranges,
)
from store.market_rows import CheckpointRow, FeedRow
from store.sql.audit_reads import StoredLog

SIGNATURE_MARK = "— "


def check_leaves(log: StoredLog, rows: Sequence[FeedRow], known: tuple[int, int]) -> Iterator[str]:
    """Yield the published rows and the leaves that do not match.

    Outside of the times `known` (epoch ms) the replay gave no rows.
    """
    hashes = b"".join(log.tiles[tile] for tile in sorted(log.tiles) if tile.level == 0)
    created_at = np.array([row.created_at for row in rows], dtype=np.int64)
    leaves = np.searchsorted(log.created_at, created_at)
    is_found = np.append(log.created_at, -1)[leaves] == created_at
    has_row = (log.created_at < known[0]) | (log.created_at > known[1])
    has_row[leaves[is_found]] = True
    for row, leaf, has_leaf in zip(rows, leaves.tolist(), is_found.tolist(), strict=True):
        salt = log.salts[SALT_BYTES * leaf : SALT_BYTES * (leaf + 1)]
        if not has_leaf:
            yield f"log: {row.id} has no leaf"
        elif hash_row(row, salt) != hashes[HASH_BYTES * leaf : HASH_BYTES * (leaf + 1)]:
            yield f"log: {row.id} is not the row of its leaf"
    yield from (f"log: leaf {leaf} has no row" for leaf in np.flatnonzero(~has_row).tolist())
    size = len(log.created_at)
    if not np.array_equal(log.leaf, np.arange(size)):
        yield "log: the leaves are not numbered in the order of their rows"
    if len(hashes) != HASH_BYTES * size:
        yield f"log: has {size} leaves, but tiles of {len(hashes) // HASH_BYTES} hashes"
    computed = extend_tiles({}, 0, hashes)
    for tile in sorted(computed.keys() | log.tiles.keys()):
        if computed.get(tile) != log.tiles.get(tile):
            yield f"log: tile {tile.level}/{tile.number} does not follow from the leaves"


def check_checkpoint(log: StoredLog, key: LogKey | None) -> Iterator[str]:
    """Yield the faults of the newest checkpoint; `key` is that of the key file, if any."""
    row, size = log.checkpoint, len(log.created_at)
    if row.refusal is not None:
        yield f"log: is not signed any more: {row.refusal}"
    signed = [] if key is None else [Checkpoint(key.origin, key.size, key.root)]
    if row.note is not None:
        try:
            signed.append(_verify_note(row))
        except NoteError as error:
            yield f"log: the checkpoint is not valid: {error}"
    elif key is not None and key.size:
        yield "log: the checkpoint is missing, although the key file has signed one"
    if key is not None and row.vkey not in (None, key.vkey.format()):
        yield "log: the checkpoint is of another key than the key file"
    for checkpoint in dict.fromkeys(signed):
        if checkpoint.size > size:
            yield f"log: has {size} leaves, but {checkpoint.size} were signed"
        elif _find_root(log.tiles, checkpoint.size) != checkpoint.root:
            yield f"log: the first {checkpoint.size} leaves are not those signed"


def _verify_note(row: CheckpointRow) -> Checkpoint:
    """Return the checkpoint of a signed note; raise NoteError if its log did not sign it."""
    text, _, signatures = (row.note or "").partition("\n\n")
    checkpoint, vkey = Checkpoint.parse(f"{text}\n"), Vkey.parse(row.vkey or "")
    if (checkpoint.origin, checkpoint.size) != (vkey.name, row.size):
        raise NoteError(f"it is of {checkpoint.origin}, size {checkpoint.size}")
    own = _find_signature(signatures.removesuffix("\n").split("\n"), vkey)
    try:
        Ed25519PublicKey.from_public_bytes(vkey.public_key).verify(own, f"{text}\n".encode())
    except (ValueError, InvalidSignature):
        raise NoteError("its signature is not that of its key") from None
    return checkpoint


def _find_signature(lines: Sequence[str], vkey: Vkey) -> bytes:
    """Return the signature of a key; raise NoteError if there is none, or a line is not one."""
    found = b""
    for line in lines:
        try:
            mark, name, encoded = line.split(" ")
            signature = b64decode(encoded, validate=True)
        except ValueError:
            raise NoteError("a line is no signature") from None
        if f"{mark} " != SIGNATURE_MARK:
            raise NoteError("a line is no signature")
        if (name, signature[:KEY_ID_BYTES]) == (vkey.name, vkey.key_id):
            found = signature[KEY_ID_BYTES:]
    return found


def _find_root(tiles: Tiles, size: int) -> bytes | None:
    """Return the root of the tree of the first leaves, None if a tile is missing."""
    try:
        return hash_ranges([Range(0, size)], tiles)[0] if size else EMPTY_ROOT
    except TreeError:
        return None
