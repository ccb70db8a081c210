"""Proofs of single rows that can be checked without a network, as in C2SP tlog-proof. Pure."""

from dataclasses import dataclass
from typing import Self

from verifier.checkpoints import Checkpoint
from verifier.notes import NoteError, decode_base64, parse_number
from verifier.tree import is_included

FIRST_LINE = "c2sp.org/tlog-proof@v1"


@dataclass(frozen=True)
class InclusionProof:
    """The place of a leaf in a signed tree; `salt` is the extra data, empty if there is none."""

    salt: bytes
    index: int
    path: tuple[bytes, ...]
    checkpoint: Checkpoint

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a proof without verifying it; NoteError says what is wrong."""
        head, _, note = text.partition("\n\n")
        first, *lines = head.split("\n")
        if first != FIRST_LINE:
            raise NoteError(f"the first line of a proof is {FIRST_LINE}")
        salt = b""
        if lines and lines[0].startswith("extra "):
            salt = decode_base64(lines.pop(0).removeprefix("extra "))
        if not lines or not lines[0].startswith("index "):
            raise NoteError("the proof has no index line")
        index = parse_number(lines.pop(0).removeprefix("index "))
        path = tuple(decode_base64(line) for line in lines)
        return cls(salt, index, path, Checkpoint.parse(note))

    def includes(self, leaf: bytes) -> bool:
        """Return whether the hash of a leaf is at the index in the tree of the checkpoint."""
        checkpoint = self.checkpoint
        return is_included(leaf, self.index, checkpoint.size, self.path, checkpoint.root)
