"""Checks the newest signed checkpoint of the log against its tree and its key. Pure."""

from base64 import b64decode
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from compute.audit.report import Report
from compute.signing.log_signer import LogKey
from compute.signing.notes import KEY_ID_BYTES, Checkpoint, NoteError, Vkey
from store.log_tree import EMPTY_ROOT, Range, Tiles, TreeError, hash_ranges
from store.market_rows import CheckpointRow
from store.sql.audit_reads import StoredLog

SIGNATURE_MARK = "— "


def check_checkpoint(log: StoredLog, key: LogKey | None, report: Report) -> None:
    """Report what is wrong with the checkpoint; `key` is that of the key file, if it is here."""
    row, size = log.checkpoint, len(log.created_at)
    if row.refusal is not None:
        report.add_finding(f"log: is not signed any more: {row.refusal}")
    signed = [] if key is None else [Checkpoint(key.origin, key.size, key.root)]
    if row.note is not None:
        try:
            signed.append(_verify_note(row))
        except NoteError as error:
            report.add_finding(f"log: the checkpoint is not valid: {error}")
    elif key is not None and key.size:
        report.add_finding("log: the checkpoint is missing, although the key file has signed one")
    if key is not None and row.vkey not in (None, key.vkey.format()):
        report.add_finding("log: the checkpoint is of another key than the key file")
    for checkpoint in dict.fromkeys(signed):
        if checkpoint.size > size:
            report.add_finding(f"log: has {size} leaves, but {checkpoint.size} were signed")
        elif _find_root(log.tiles, checkpoint.size) != checkpoint.root:
            report.add_finding(f"log: the first {checkpoint.size} leaves are not those signed")


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
