"""Trust policies: which logs and which witnesses must have signed, as in C2SP tlog-policy. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from verifier.checkpoints import Checkpoint
from verifier.notes import COSIGNER_KINDS, LOG_KEY, NoteError, VerifierKey, parse_number

NO_QUORUM = "none"
THRESHOLD_WORDS: dict[str, Callable[[int], int]] = {"any": lambda n: 1, "all": lambda n: n}


class PolicyError(Exception):
    """A line of a policy file that is not valid, or a missing one."""


@dataclass(frozen=True)
class Group:
    """Some witnesses and groups; it counts as one that signed if `threshold` members did."""

    threshold: int
    members: tuple[str, ...]


@dataclass
class Policy:
    """The logs that are accepted (any if empty), and the quorum of witnesses."""

    logs: list[VerifierKey] = field(default_factory=list)
    witnesses: dict[str, VerifierKey] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    quorum: str = ""

    def list_cosigners(self, checkpoint: Checkpoint) -> list[str]:
        """Return the names of the witnesses whose cosignature verifies."""
        return [name for name, key in self.witnesses.items() if checkpoint.is_cosigned_by(key)]

    def is_met_by(self, cosigners: list[str]) -> bool:
        """Return whether these witnesses are a quorum."""
        return self.quorum == NO_QUORUM or self._has_signed(self.quorum, cosigners)

    def _has_signed(self, name: str, cosigners: list[str]) -> bool:
        if name in self.witnesses:
            return name in cosigners
        group = self.groups[name]
        return sum(self._has_signed(one, cosigners) for one in group.members) >= group.threshold


def parse_policy(text: str) -> Policy:
    """Parse a policy file; PolicyError names the line that is wrong."""
    reader = _PolicyReader()
    for number, line in enumerate(text.split("\n"), 1):
        try:
            reader.read_line(line)
        except (PolicyError, NoteError) as error:
            raise PolicyError(f"line {number}: {error}") from None
    if not reader.policy.quorum:
        raise PolicyError("there is no quorum line, such as `quorum none` or `quorum NAME`")
    return reader.policy


class _PolicyReader:
    """Reads a policy line by line; names must be defined before they are used."""

    def __init__(self) -> None:
        self.policy = Policy()
        self._grouped: set[str] = set()
        self._keys: set[tuple[int, bytes]] = set()

    def read_line(self, line: str) -> None:
        """Add the content of a line to the policy."""
        if any((c < " " and c != "\t") or c == "\x7f" for c in line):
            raise PolicyError("control characters are not allowed")
        words = line.replace("\t", " ").strip(" ").split(" ")
        keyword, *items = [word for word in words if word] or ["#"]
        if keyword.startswith("#"):
            return
        readers: dict[str, Callable[..., None]] = {
            "log": self._read_log,
            "witness": self._read_witness,
            "group": self._read_group,
            "quorum": self._read_quorum,
        }
        if keyword not in readers:
            raise PolicyError(f"{keyword!r} is none of {', '.join(readers)}")
        try:
            readers[keyword](*items)
        except TypeError:
            raise PolicyError(f"a {keyword} line does not have {len(items)} items") from None

    def _read_log(self, vkey: str, url: str = "") -> None:
        self.policy.logs.append(self._parse_key(vkey, LOG_KEY))

    def _read_witness(self, name: str, vkey: str, url: str = "") -> None:
        self._refuse_used_name(name)
        self.policy.witnesses[name] = self._parse_key(vkey, *COSIGNER_KINDS)

    def _read_group(self, name: str, threshold: str, member: str, *others: str) -> None:
        self._refuse_used_name(name)
        members = (member, *others)
        for one in members:
            self._require_defined(one)
            if one in self._grouped:
                raise PolicyError(f"{one} is already a member of a group")
            self._grouped.add(one)
        count = len(members)
        word = THRESHOLD_WORDS.get(threshold)
        needed = parse_number(threshold) if word is None else word(count)
        if not 1 <= needed <= count:
            raise PolicyError(f"{needed} of {count} members cannot be required")
        self.policy.groups[name] = Group(needed, members)

    def _read_quorum(self, name: str) -> None:
        if self.policy.quorum:
            raise PolicyError("there are two quorum lines")
        if name != NO_QUORUM:
            self._require_defined(name)
        self.policy.quorum = name

    def _parse_key(self, vkey: str, *kinds: int) -> VerifierKey:
        key = VerifierKey.parse(vkey, *kinds)
        if (key.kind, key.public_key) in self._keys:
            raise PolicyError(f"the key of {key.name} occurs twice")
        self._keys.add((key.kind, key.public_key))
        return key

    def _refuse_used_name(self, name: str) -> None:
        if name == NO_QUORUM or self._is_defined(name):
            raise PolicyError(f"the name {name} is already in use")

    def _require_defined(self, name: str) -> None:
        if not self._is_defined(name):
            raise PolicyError(f"{name} is not defined on a line above")

    def _is_defined(self, name: str) -> bool:
        return name in self.policy.witnesses or name in self.policy.groups
