"""Checkpoints as signed notes, after C2SP's signed-note and tlog-checkpoint; pure functions."""

from base64 import b64decode, b64encode
from hashlib import sha256
from typing import NamedTuple, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# The signature types of signed-note.
ED25519 = 1
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


def sign_checkpoint(checkpoint: Checkpoint, key: Ed25519PrivateKey) -> str:
    """Return the signed note; the same key and checkpoint always give the same bytes."""
    text = checkpoint.format()
    vkey = build_vkey(checkpoint.origin, key)
    signature = b64encode(vkey.key_id + key.sign(text.encode())).decode()
    return f"{text}\n— {vkey.name} {signature}\n"
