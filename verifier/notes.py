"""Signed notes and verifier keys, as in C2SP signed-note. Pure."""

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

# Signature types of C2SP: Ed25519 of a log, and Ed25519 and ML-DSA-44 of a cosigner.
LOG_KEY, COSIGNER_KEY, POST_QUANTUM_COSIGNER_KEY = 0x01, 0x04, 0x06
COSIGNER_KINDS = (COSIGNER_KEY, POST_QUANTUM_COSIGNER_KEY)
KEY_BYTES = {LOG_KEY: 32, COSIGNER_KEY: 32, POST_QUANTUM_COSIGNER_KEY: 1312}
MAX_NOTE_BYTES = 1_000_000
# Cosignatures write the length of a name as one byte.
MAX_NAME_BYTES = 255
SIGNATURE_PREFIX = "\N{EM DASH} "


class NoteError(Exception):
    """A note, a key or a proof that cannot be read, or a signature that does not verify."""


def decode_base64(text: str) -> bytes:
    """Decode standard base64; NoteError if it is not."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteError(f"{text[:60]!r} is not base64") from None


def parse_number(text: str) -> int:
    """Parse a decimal without leading zeros; NoteError if it is not one."""
    is_decimal = text.isascii() and text.isdecimal() and len(text) < 20
    if not is_decimal or (len(text) > 1 and text[0] == "0"):
        raise NoteError(f"{text[:60]!r} is not a number")
    return int(text)


@dataclass(frozen=True)
class VerifierKey:
    """The public key of a log or of a witness; `kind` is its signature type."""

    name: str
    key_id: bytes
    kind: int
    public_key: bytes

    @classmethod
    def parse(cls, text: str, *kinds: int) -> Self:
        """Parse `name+keyid+base64` of one of some kinds; NoteError says what is wrong."""
        # Names have no plus sign, but base64 has.
        parts = text.strip().split("+", 2)
        if len(parts) != 3 or not is_key_name(parts[0]):
            raise NoteError(f"{text[:200]!r} is not a verifier key such as name+1a2b3c4d+AbCd")
        name, id_text, key_text = parts
        material = decode_base64(key_text)
        kind = material[0] if material else 0
        if kind not in kinds:
            accepted = " or ".join(f"{one:02x}" for one in kinds)
            raise NoteError(
                f"the key of {name} has signature type {kind:02x}, but {accepted} is needed here"
            )
        if len(material) != 1 + KEY_BYTES[kind]:
            raise NoteError(f"the key of {name} does not have {KEY_BYTES[kind]} bytes")
        key_id = hash_key(name, material)
        if id_text != key_id.hex():
            raise NoteError(f"the key of {name} has the id {key_id.hex()}, not {id_text[:60]}")
        return cls(name, key_id, kind, material[1:])

    def __str__(self) -> str:
        material = base64.b64encode(bytes([self.kind]) + self.public_key).decode()
        return f"{self.name}+{self.key_id.hex()}+{material}"

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Return whether this key signed a message."""
        algorithm = MLDSA44PublicKey if self.kind == POST_QUANTUM_COSIGNER_KEY else Ed25519PublicKey
        try:
            algorithm.from_public_bytes(self.public_key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def is_key_name(text: str) -> bool:
    """Return whether a text can name a key: not empty or too long, no spaces and plus signs."""
    is_word = bool(text) and "+" not in text and text.split() == [text]
    return is_word and len(text.encode()) <= MAX_NAME_BYTES


def hash_key(name: str, material: bytes) -> bytes:
    """Return the id of a key; `material` is its type and its public key."""
    return hashlib.sha256(f"{name}\n".encode() + material).digest()[:4]


@dataclass(frozen=True)
class Signature:
    """One signature line of a note."""

    name: str
    key_id: bytes
    content: bytes


@dataclass(frozen=True)
class SignedNote:
    """The text of a note, which ends in a newline, and its signatures."""

    text: str
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, note: str) -> Self:
        """Parse a note without verifying it; NoteError says what is wrong."""
        if len(note) > MAX_NOTE_BYTES or any(c < " " and c != "\n" for c in note):
            raise NoteError("the note is too long or has control characters")
        text, blank, lines = note.rpartition("\n\n")
        if not blank or not lines.endswith("\n"):
            raise NoteError("the note has no signatures")
        signatures = tuple(_parse_signature(line) for line in lines[:-1].split("\n"))
        return cls(text + "\n", signatures)

    def find_signatures(self, key: VerifierKey) -> list[bytes]:
        """Return the signatures that claim to be of a key."""
        identity = (key.name, key.key_id)
        return [one.content for one in self.signatures if (one.name, one.key_id) == identity]

    def is_signed_by(self, key: VerifierKey) -> bool:
        """Return whether the note has signatures of a log's key, and all of them verify."""
        found = self.find_signatures(key)
        return bool(found) and all(key.verify(one, self.text.encode()) for one in found)


def _parse_signature(line: str) -> Signature:
    name, _, encoded = line.removeprefix(SIGNATURE_PREFIX).partition(" ")
    if not line.startswith(SIGNATURE_PREFIX) or not is_key_name(name):
        raise NoteError(f"{line[:60]!r} is not a signature line")
    content = decode_base64(encoded)
    if len(content) < 5:
        raise NoteError(f"the signature of {name} is too short")
    return Signature(name, content[:4], content[4:])
