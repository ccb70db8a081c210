"""The file with the key of the log, and with the size and root that were signed last.

It is kept apart from the database, so that a restored backup cannot make the log sign a smaller or
a different tree than before.
"""

import json
import os
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from compute.signing.notes import Vkey, build_vkey
from schemas.operator_error import OperatorError
from store.log_tree import EMPTY_ROOT, HASH_BYTES
from store.sqlite.files import sync_folder

SEED_BYTES = 32


class KeyFileError(OperatorError):
    """The key file cannot be used; the message says why, without its content."""


@dataclass(frozen=True, slots=True)
class LogKey:
    """The key of a log (the seed of an Ed25519 key), its origin, and the tree it signed last."""

    origin: str
    seed: bytes = field(repr=False)
    size: int = 0
    root: bytes = EMPTY_ROOT

    @classmethod
    def create(cls, origin: str) -> Self:
        """Return a new key, which has signed nothing."""
        return cls(origin, os.urandom(SEED_BYTES))

    @property
    def private_key(self) -> Ed25519PrivateKey:
        """The key that signs."""
        return Ed25519PrivateKey.from_private_bytes(self.seed)

    @property
    def vkey(self) -> Vkey:
        """The key that verifies."""
        return build_vkey(self.origin, self.private_key)

    def with_tree(self, size: int, root: bytes) -> "LogKey":
        """Return the key with another tree that it signed last."""
        return replace(self, size=size, root=root)


def load_key(path: Path) -> LogKey | None:
    """Return the key in a file, None if there is none; KeyFileError if the file is not readable."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as error:
        raise KeyFileError(f"cannot read the key file {path}: {error}") from error
    try:
        return _parse_key(json.loads(text))
    except (ValueError, KeyError, TypeError):
        # The text has the key, so the cause is not named.
        raise KeyFileError(f"{path} is not a key file of the log") from None


def save_key(path: Path, key: LogKey) -> None:
    """Replace the file; once this returns, it is on the disk. KeyFileError if that fails."""
    text = json.dumps(
        {
            "origin": key.origin,
            "key": b64encode(key.seed).decode(),
            "size": key.size,
            "root": b64encode(key.root).decode(),
        }
    )
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        _write_private_file(unfinished, f"{text}\n".encode())
        os.replace(unfinished, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise KeyFileError(f"cannot write the key file {path}: {error}") from error


def archive_key(path: Path, archive: Path) -> bool:
    """Rename the file; return whether there was one. KeyFileError if that fails."""
    try:
        os.rename(path, archive)
        sync_folder(path.parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise KeyFileError(f"cannot rename the key file {path}: {error}") from error
    return True


def move_key(source: Path, target: Path) -> bool:
    """Move a key file, so that only one log continues; return whether there was one to move.

    The former file is renamed to FILE.moved. Raise KeyFileError if another key is in its way.
    """
    key = None if source == target else load_key(source)
    if key is None:
        return False
    if load_key(target) not in (None, key):
        raise KeyFileError(f"{target} is the key file of another log: move it away first")
    save_key(target, key)
    return archive_key(source, source.with_name(f"{source.name}.moved"))


def _parse_key(fields: dict[str, object]) -> LogKey:
    origin, size = fields["origin"], fields["size"]
    seed, root = (b64decode(str(fields[name]), validate=True) for name in ("key", "root"))
    if not (isinstance(origin, str) and isinstance(size, int)):
        raise TypeError
    if (len(seed), len(root)) != (SEED_BYTES, HASH_BYTES):
        raise ValueError
    return LogKey(origin, seed, size, root)


def _write_private_file(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    # A key that is lost ends the log, so the file is not replaced by one that does not have it.
    if path.read_bytes() != content:
        raise OSError(f"{path} does not have what was written")
