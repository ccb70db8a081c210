"""What logs and witnesses sign, and whom to trust: notes, checkpoints, proofs, policies. Pure.

Their formats are those of C2SP: signed-note, tlog-checkpoint, tlog-cosignature, tlog-proof and
tlog-policy.
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

from verifier.tree import HASH_BYTES, is_included

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


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


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
        """Parse `name+keyid+base64` of one of some kinds; NoteError names the fault."""
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
        key = cls.build(name, kind, material[1:])
        if id_text != key.key_id.hex():
            raise NoteError(f"the key of {name} has the id {key.key_id.hex()}, not {id_text[:60]}")
        return key

    @classmethod
    def build(cls, name: str, kind: int, public_key: bytes) -> Self:
        """Return the key of a name."""
        digest = hashlib.sha256(f"{name}\n".encode() + bytes([kind]) + public_key).digest()
        return cls(name, digest[:4], kind, public_key)

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{_encode(bytes([self.kind]) + self.public_key)}"

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


@dataclass(frozen=True)
class SignedNote:
    """The text of a note, which ends in a newline, and its signatures.

    A signature is the name and the id of a key, and the bytes that it signed with.
    """

    text: str
    signatures: tuple[tuple[str, bytes, bytes], ...]

    @classmethod
    def parse(cls, note: str) -> Self:
        """Parse a note without verifying it; NoteError names the fault."""
        if len(note) > MAX_NOTE_BYTES or any(c < " " and c != "\n" for c in note):
            raise NoteError("the note is too long or has control characters")
        text, blank, lines = note.rpartition("\n\n")
        if not blank or not lines.endswith("\n"):
            raise NoteError("the note has no signatures")
        signatures = []
        for line in lines[:-1].split("\n"):
            name, _, encoded = line.removeprefix(SIGNATURE_PREFIX).partition(" ")
            if not line.startswith(SIGNATURE_PREFIX) or not is_key_name(name):
                raise NoteError(f"{line[:60]!r} is not a signature line")
            content = decode_base64(encoded)
            if len(content) < 5:
                raise NoteError(f"the signature of {name} is too short")
            signatures.append((name, content[:4], content[4:]))
        return cls(text + "\n", tuple(signatures))

    def find_signatures(self, key: VerifierKey) -> list[bytes]:
        """Return the signatures that claim to be of a key."""
        identity = (key.name, key.key_id)
        return [content for *names, content in self.signatures if tuple(names) == identity]

    def is_signed_by(self, key: VerifierKey) -> bool:
        """Return whether the note has signatures of a log's key, and all of them verify."""
        found = self.find_signatures(key)
        return bool(found) and all(key.verify(one, self.text.encode()) for one in found)


TIME_BYTES = 8
# The last second of the year 9999; no time is 0.
MAX_TIME = 253_402_300_799
# A cosignature counts for a day, and clocks may differ so much.
COSIGNED_WITHIN, CLOCK_SKEW = timedelta(days=1), timedelta(minutes=10)


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
        """Parse a checkpoint without verifying it; NoteError names the fault."""
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

    def find_signed_time(self, key: VerifierKey) -> datetime | None:
        """Return the time that the log with this key signed, None if it signed none."""
        return self.find_cosigned_time(VerifierKey.build(key.name, COSIGNER_KEY, key.public_key))

    def find_cosigned_time(self, witness: VerifierKey) -> datetime | None:
        """Return the time of a witness's cosignature, None unless all that it has verify."""
        found = self.note.find_signatures(witness)
        if not found or not all(self._verify_cosignature(one, witness) for one in found):
            return None
        return datetime.fromtimestamp(int.from_bytes(found[-1][:TIME_BYTES]), UTC)

    def _verify_cosignature(self, content: bytes, witness: VerifierKey) -> bool:
        time, signature = content[:TIME_BYTES], content[TIME_BYTES:]
        # Without a time, it would not say that the tree is the largest that the witness has seen.
        if not 0 < int.from_bytes(time, "big") <= MAX_TIME:
            return False
        if witness.kind == POST_QUANTUM_COSIGNER_KEY:
            # The structure `cosigned_message` of tlog-cosignature for the whole tree.
            names = [one.encode() for one in (witness.name, self.origin)]
            name, origin = (bytes([len(one)]) + one for one in names)
            start, end = (number.to_bytes(8, "big") for number in (0, self.size))
            message = b"".join((b"subtree/v1\n\0", name, time, origin, start, end, self.root))
        else:
            line = f"time {int.from_bytes(time, 'big')}"
            message = f"cosignature/v1\n{line}\n{self.note.text}".encode()
        return witness.verify(signature, message)


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
        """Parse a proof without verifying it; NoteError names the fault."""
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

    def format(self) -> str:
        """Return the text of the proof."""
        lines = [f"extra {_encode(self.salt)}", f"index {self.index}", *map(_encode, self.path)]
        return "\n".join([FIRST_LINE, *lines]) + f"\n\n{self.checkpoint.source}"

    def includes(self, leaf: bytes) -> bool:
        """Return whether the hash of a leaf is at the index in the tree of the checkpoint."""
        checkpoint = self.checkpoint
        return is_included(leaf, self.index, checkpoint.size, self.path, checkpoint.root)


NO_QUORUM = "none"


class PolicyError(Exception):
    """A line of a policy file that is not valid, or a missing one."""


@dataclass
class Policy:
    """The logs that are accepted (any if empty), and the quorum of witnesses.

    A group counts as one that signed if as many of its members did as its number says.
    """

    logs: list[VerifierKey] = field(default_factory=list)
    witnesses: dict[str, VerifierKey] = field(default_factory=dict)
    # The addresses of those that have one.
    urls: dict[str, str] = field(default_factory=dict)
    groups: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    quorum: str = ""

    def list_cosigners(self, checkpoint: Checkpoint, now: datetime | None) -> list[str]:
        """Return the names of the witnesses whose cosignature verifies, and is of the last day.

        Without `now`, it may be of any time.
        """
        times = {n: checkpoint.find_cosigned_time(key) for n, key in self.witnesses.items()}
        return [
            name
            for name, time in times.items()
            if time is not None
            and (now is None or now - COSIGNED_WITHIN <= time <= now + CLOCK_SKEW)
        ]

    def is_met_by(self, cosigners: list[str]) -> bool:
        """Return whether these witnesses are a quorum."""
        return self.quorum == NO_QUORUM or self._has_signed(self.quorum, cosigners)

    def _has_signed(self, name: str, cosigners: list[str]) -> bool:
        if name in self.witnesses:
            return name in cosigners
        threshold, members = self.groups[name]
        return sum(self._has_signed(one, cosigners) for one in members) >= threshold


def parse_policy(text: str) -> Policy:
    """Parse a policy file; PolicyError names the line that is wrong."""
    policy = Policy()
    for number, line in enumerate(text.split("\n"), 1):
        try:
            _read_policy_line(policy, line)
        except (PolicyError, NoteError) as error:
            raise PolicyError(f"line {number}: {error}") from None
    if not policy.quorum:
        raise PolicyError("there is no quorum line, such as `quorum none` or `quorum NAME`")
    return policy


def _read_policy_line(policy: Policy, line: str) -> None:
    """Add the content of a line to a policy; names must be defined before they are used."""
    if any((c < " " and c != "\t") or c == "\x7f" for c in line):
        raise PolicyError("control characters are not allowed")
    match [word for word in line.replace("\t", " ").split(" ") if word]:
        case []:
            return
        case [comment, *_] if comment.startswith("#"):
            return
        case ["log", vkey] | ["log", vkey, _]:
            policy.logs.append(_parse_new_key(policy, vkey, LOG_KEY))
        case ["witness", name, vkey, *urls] if len(urls) <= 1:
            _refuse_used_name(policy, name)
            policy.witnesses[name] = _parse_new_key(policy, vkey, *COSIGNER_KINDS)
            if urls:
                policy.urls[name] = urls[0]
        case ["group", name, threshold, *members] if members:
            _refuse_used_name(policy, name)
            grouped = [one for _, others in policy.groups.values() for one in others]
            for one in members:
                _require_defined(policy, one)
                if one in grouped:
                    raise PolicyError(f"{one} is already a member of a group")
                grouped.append(one)
            count = len(members)
            words = {"any": 1, "all": count}
            needed = words[threshold] if threshold in words else parse_number(threshold)
            if not 1 <= needed <= count:
                raise PolicyError(f"{needed} of {count} members cannot be required")
            policy.groups[name] = needed, tuple(members)
        case ["quorum", name]:
            if policy.quorum:
                raise PolicyError("there are two quorum lines")
            if name != NO_QUORUM:
                _require_defined(policy, name)
            policy.quorum = name
        case ["log" | "witness" | "group" | "quorum" as keyword, *items]:
            raise PolicyError(f"a {keyword} line does not have {len(items)} items")
        case [keyword, *_]:
            raise PolicyError(f"{keyword!r} is none of log, witness, group, quorum")


def _parse_new_key(policy: Policy, vkey: str, *kinds: int) -> VerifierKey:
    key = VerifierKey.parse(vkey, *kinds)
    known = [(one.kind, one.public_key) for one in (*policy.logs, *policy.witnesses.values())]
    if (key.kind, key.public_key) in known:
        raise PolicyError(f"the key of {key.name} occurs twice")
    return key


def _refuse_used_name(policy: Policy, name: str) -> None:
    if name in (NO_QUORUM, *policy.witnesses, *policy.groups):
        raise PolicyError(f"the name {name} is already in use")


def _require_defined(policy: Policy, name: str) -> None:
    if name not in (*policy.witnesses, *policy.groups):
        raise PolicyError(f"{name} is not defined on a line above")
