"""Checkpoints of a log and cosignatures of witnesses, as in C2SP tlog-checkpoint. Pure."""

from dataclasses import dataclass
from typing import Self

from verifier.notes import (
    MAX_NAME_BYTES,
    POST_QUANTUM_COSIGNER_KEY,
    NoteError,
    SignedNote,
    VerifierKey,
    decode_base64,
    parse_number,
)
from verifier.tree import HASH_BYTES

TIME_BYTES, MAX_TIME = 8, 1 << 63


@dataclass(frozen=True)
class Checkpoint:
    """The signed head of a tree; `source` is the whole note as it was read."""

    origin: str
    size: int
    root: bytes
    note: SignedNote
    source: str

    @classmethod
    def parse(cls, source: str) -> Self:
        """Parse a checkpoint without verifying it; NoteError says what is wrong."""
        note = SignedNote.parse(source)
        lines = note.text[:-1].split("\n")
        if len(lines) < 3 or not all(lines) or len(lines[0].encode()) > MAX_NAME_BYTES:
            raise NoteError("a checkpoint needs an origin, a tree size and a root")
        root = decode_base64(lines[2])
        if len(root) != HASH_BYTES:
            raise NoteError("the root of the checkpoint is not a SHA-256 hash")
        return cls(lines[0], parse_number(lines[1]), root, note, source)

    def is_signed_by(self, key: VerifierKey) -> bool:
        """Return whether the log with this key signed it, under its own origin."""
        return self.origin == key.name and self.note.is_signed_by(key)

    def is_cosigned_by(self, witness: VerifierKey) -> bool:
        """Return whether it has cosignatures of a witness, and all of them verify."""
        found = self.note.find_signatures(witness)
        return bool(found) and all(self._verify_cosignature(one, witness) for one in found)

    def _verify_cosignature(self, content: bytes, witness: VerifierKey) -> bool:
        time, signature = content[:TIME_BYTES], content[TIME_BYTES:]
        # Without a time, it would not say that the tree is the largest that the witness has seen.
        if not 0 < int.from_bytes(time, "big") < MAX_TIME:
            return False
        if witness.kind == POST_QUANTUM_COSIGNER_KEY:
            message = self._build_subtree_message(time, witness)
        else:
            line = f"time {int.from_bytes(time, 'big')}"
            message = f"cosignature/v1\n{line}\n{self.note.text}".encode()
        return witness.verify(signature, message)

    def _build_subtree_message(self, time: bytes, witness: VerifierKey) -> bytes:
        """Return the structure `cosigned_message` of tlog-cosignature for the whole tree."""
        name, origin = (_prefix_length(one.encode()) for one in (witness.name, self.origin))
        start, end = (number.to_bytes(8, "big") for number in (0, self.size))
        return b"".join((b"subtree/v1\n\0", name, time, origin, start, end, self.root))


def _prefix_length(name: bytes) -> bytes:
    return bytes([len(name)]) + name
