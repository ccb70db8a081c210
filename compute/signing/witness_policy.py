"""Reads the witnesses of a policy file, whose format is C2SP's tlog-policy."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from compute.signing.cosignatures import KEY_BYTES
from compute.signing.notes import NoteError, Vkey
from schemas.operator_error import OperatorError

KEYWORDS = ("log", "witness", "group", "quorum")


class Witness(NamedTuple):
    """A witness: its name in the policy, its key, and its submission prefix."""

    name: str
    vkey: Vkey
    url: str


class PolicyError(OperatorError):
    """A policy file that the operator must correct."""


def load_witnesses(path: Path) -> list[Witness]:
    """Return the witnesses of a policy file that have an address; PolicyError if there is none.

    Logs, groups and the quorum are for those who verify, so they are not checked.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise PolicyError(f"cannot read the witness policy {path}: {error}") from error
    try:
        witnesses = list(_parse_policy(text))
    except NoteError as error:
        raise PolicyError(f"{path}: {error}") from error
    if not witnesses:
        raise PolicyError(
            f"{path}: no witness has an address; expected lines such as "
            "witness NAME VKEY https://witness.example/"
        )
    return witnesses


def _parse_policy(text: str) -> Iterator[Witness]:
    keys: set[bytes] = set()
    for number, line in enumerate(text.split("\n"), 1):
        words = line.replace("\t", " ").split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] not in KEYWORDS:
            raise NoteError(f"line {number}: {words[0]!r} is none of {', '.join(KEYWORDS)}")
        if words[0] != "witness":
            continue
        if len(words) not in (3, 4):
            raise NoteError(f"line {number}: expected witness NAME VKEY [URL]")
        vkey = _parse_key(number, words[2])
        if vkey.public_key in keys:
            raise NoteError(f"line {number}: this key is there twice")
        keys.add(vkey.public_key)
        if len(words) == 4:
            yield Witness(words[1], vkey, _parse_url(number, words[3]))


def _parse_key(number: int, text: str) -> Vkey:
    try:
        vkey = Vkey.parse(text)
    except NoteError as error:
        raise NoteError(f"line {number}: {error}") from error
    if len(vkey.public_key) != KEY_BYTES.get(vkey.signature_type):
        raise NoteError(
            f"line {number}: the key is not one for cosignatures, of type 4 (Ed25519) or 6 "
            "(ML-DSA-44)"
        )
    return vkey


def _parse_url(number: int, text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise NoteError(f"line {number}: expected an http(s):// address without query or fragment")
    return text.rstrip("/")
