"""Checkpoints of a log and cosignatures of witnesses, as in C2SP tlog-checkpoint. Pure."""

from dataclasses import dataclass
from typing import Self

from verifier.notes import (
    COSIGNER_KEY,
    NoteError,
    SignedNote,
    VerifierKey,
    decode_base64,
    parse_number,
)

HASH_BYTES = 32
TIME_BYTES = 8


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
        if len(lines) < 3 or not all(lines):
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
        time = int.from_bytes(content[:TIME_BYTES], "big")
        message = f"cosignature/v1\ntime {time}\n{self.note.text}"
        is_timed = witness.kind == COSIGNER_KEY and len(content) > TIME_BYTES
        return is_timed and witness.verify(content[TIME_BYTES:], message.encode())
