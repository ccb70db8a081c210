"""Checkpoints as signed notes; pure functions.

After C2SP's signed-note, tlog-checkpoint and tlog-cosignature.
"""

from base64 import b64decode, b64encode
from hashlib import sha256
from typing import NamedTuple, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# The signature types of signed-note.
ED25519, ED25519_COSIGNATURE = 1, 4
KEY_ID_BYTES = 4


class NoteError(Exception):
    """A note or a key that is not valid; the message says why."""


class Vkey(NamedTuple):
    """A verifier key: the name of a signer, the type of its signatures, and its public key."""

    name: str
    signature_type: int
    public_key: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse NAME+ID+KEY; raise NoteError if it is not valid."""
        try:
            name, key_id, encoded = text.split("+", 2)
            key = b64decode(encoded, validate=True)
            vkey = cls(name, key[0], key[1:])
        except (ValueError, IndexError):
            raise NoteError("expected a verifier key: NAME+ID+KEY") from None
        if key_id != vkey.key_id.hex():
            raise NoteError(f"the key id {key_id} does not belong to the rest of the key")
        return vkey

    @property
    def key_id(self) -> bytes:
        """The four bytes with which signatures of this key begin."""
        named = f"{self.name}\n".encode() + bytes([self.signature_type]) + self.public_key
        return sha256(named).digest()[:KEY_ID_BYTES]

    def format(self) -> str:
        """Return NAME+ID+KEY."""
        key = bytes([self.signature_type]) + self.public_key
        return f"{self.name}+{self.key_id.hex()}+{b64encode(key).decode()}"


class Checkpoint(NamedTuple):
    """The part of a checkpoint that a log signs: its origin, and the size and root of its tree."""

    origin: str
    size: int
    root: bytes

    @classmethod
    def parse(cls, note: str) -> Self:
        """Parse the text of a note; raise NoteError if it is not a checkpoint."""
        try:
            origin, size, root, *_ = note.split("\n")
            return cls(origin, int(size), b64decode(root, validate=True))
        except ValueError:
            raise NoteError("the note is not a checkpoint") from None

    def format(self) -> str:
        """Return the text that is signed."""
        return f"{self.origin}\n{self.size}\n{b64encode(self.root).decode()}\n"


def build_vkey(name: str, key: Ed25519PrivateKey) -> Vkey:
    """Return the verifier key of a log."""
    return Vkey(name, ED25519, key.public_key().public_bytes_raw())


def build_cosigner(name: str, key: Ed25519PrivateKey) -> Vkey:
    """Return the verifier key of a cosigner."""
    return build_vkey(name, key)._replace(signature_type=ED25519_COSIGNATURE)


def sign_checkpoint(checkpoint: Checkpoint, key: Ed25519PrivateKey, at: int | None = None) -> str:
    """Return the signed note; the same arguments always give the same bytes.

    With a time (epoch s), the key of the log also makes a timestamped cosignature.
    """
    text = checkpoint.format()
    lines = _format_signature(build_vkey(checkpoint.origin, key), key.sign(text.encode()))
    if at is not None:
        lines += cosign(checkpoint.origin, key, text, at)
    return f"{text}\n{lines}"


def cosign(name: str, key: Ed25519PrivateKey, text: str, at: int) -> str:
    """Return the line by which a cosigner signs the text of a checkpoint at a time (epoch s)."""
    signature = key.sign(f"cosignature/v1\ntime {at}\n{text}".encode())
    return _format_signature(build_cosigner(name, key), at.to_bytes(8) + signature)


def _format_signature(vkey: Vkey, signature: bytes) -> str:
    return f"— {vkey.name} {b64encode(vkey.key_id + signature).decode()}\n"


def split_signatures(note: str) -> list[tuple[str, bytes, str]]:
    """Return the name, the id of the key, and the line of each signature of a note."""
    lines = note.partition("\n\n")[2].splitlines(keepends=True)
    parts = [(*line.split()[1:3], line) for line in lines]
    return [(name, b64decode(encoded)[:KEY_ID_BYTES], line) for name, encoded, line in parts]
