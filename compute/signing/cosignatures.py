"""Verifies cosignatures of checkpoints, after C2SP's tlog-cosignature; pure functions."""

from base64 import b64decode

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

from compute.signing.notes import KEY_ID_BYTES, Checkpoint, Vkey

# The signature types of cosignatures, with the length of their public keys.
ED25519_COSIGNATURE, ML_DSA_COSIGNATURE = 4, 6
KEY_BYTES = {ED25519_COSIGNATURE: 32, ML_DSA_COSIGNATURE: 1312}
TIMESTAMP_BYTES = 8


def find_cosignature(vkey: Vkey, checkpoint: Checkpoint, lines: str) -> str | None:
    """Return the line with the valid cosignature of a witness, None if there is none."""
    for line in lines.splitlines():
        payload = read_payload(vkey, line)
        if payload is not None and is_cosignature(vkey, checkpoint, payload):
            return f"{line}\n"
    return None


def read_payload(vkey: Vkey, line: str) -> bytes | None:
    """Return timestamp and signature of a line of a note, None if another key made it."""
    match line.split(" "):
        case ["—", vkey.name, encoded]:
            try:
                signed = b64decode(encoded, validate=True)
            except ValueError:
                return None
            is_of_key = signed[:KEY_ID_BYTES] == vkey.key_id
            return signed[KEY_ID_BYTES:] if is_of_key else None
    return None


def is_cosignature(vkey: Vkey, checkpoint: Checkpoint, payload: bytes) -> bool:
    """Return whether a timestamp and signature are a witness's cosignature of a checkpoint."""
    timestamp, signature = payload[:TIMESTAMP_BYTES], payload[TIMESTAMP_BYTES:]
    at = int.from_bytes(timestamp)
    # Without a time, it would not say that the tree is the largest one that the witness saw.
    if not 0 < at < 1 << 63:
        return False
    try:
        if vkey.signature_type == ML_DSA_COSIGNATURE:
            message = _build_ml_dsa_message(vkey, checkpoint, timestamp)
            MLDSA44PublicKey.from_public_bytes(vkey.public_key).verify(signature, message)
        else:
            message = f"cosignature/v1\ntime {at}\n{checkpoint.format()}".encode()
            Ed25519PublicKey.from_public_bytes(vkey.public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _build_ml_dsa_message(vkey: Vkey, checkpoint: Checkpoint, timestamp: bytes) -> bytes:
    """Return the structure `cosigned_message`, whose subtree is the whole tree."""
    name, origin = vkey.name.encode(), checkpoint.origin.encode()
    return b"".join(
        (
            b"subtree/v1\n\0",
            bytes([len(name)]) + name,
            timestamp,
            bytes([len(origin)]) + origin,
            (0).to_bytes(8),
            checkpoint.size.to_bytes(8),
            checkpoint.root,
        )
    )
