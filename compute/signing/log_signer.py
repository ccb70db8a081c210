"""Signs the tree of the log after each run, unless it contradicts what was signed before.

The file with the key also has the size and root that were signed last. It is kept apart from the
database, so that a restored backup cannot make the log sign a smaller or a different tree.
Checkpoints are notes of C2SP, which `verifier.notes` reads.
"""

import asyncio
import json
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Self, TypeVar

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas.errors import OperatorError
from schemas.vocabulary import Clock
from store.log_tree import EMPTY_ROOT, HASH_BYTES, TreeError, verify_consistency
from store.market_rows import CheckpointRow
from store.sql.transparency_log import FeedLog
from store.sqlite.database_files import sync_folder
from store.store_errors import DamagedError
from verifier.notes import COSIGNER_KEY, LOG_KEY, SIGNATURE_PREFIX, VerifierKey

SEED_BYTES = 32


def build_vkey(name: str, key: Ed25519PrivateKey) -> VerifierKey:
    """Return the verifier key of a log."""
    return VerifierKey.build(name, LOG_KEY, key.public_key().public_bytes_raw())


def build_cosigner(name: str, key: Ed25519PrivateKey) -> VerifierKey:
    """Return the verifier key of a cosigner."""
    return VerifierKey.build(name, COSIGNER_KEY, key.public_key().public_bytes_raw())


def sign_checkpoint(
    origin: str, size: int, root: bytes, key: Ed25519PrivateKey, at: int | None = None
) -> str:
    """Return the signed note; the same arguments always give the same bytes.

    With a time (epoch s), the key of the log also makes a timestamped cosignature.
    """
    text = f"{origin}\n{size}\n{b64encode(root).decode()}\n"
    lines = _format_signature(build_vkey(origin, key), key.sign(text.encode()))
    if at is not None:
        lines += cosign(origin, key, text, at)
    return f"{text}\n{lines}"


def cosign(name: str, key: Ed25519PrivateKey, text: str, at: int) -> str:
    """Return the line by which a cosigner signs the text of a checkpoint at a time (epoch s)."""
    signature = key.sign(f"cosignature/v1\ntime {at}\n{text}".encode())
    return _format_signature(build_cosigner(name, key), at.to_bytes(8) + signature)


def _format_signature(key: VerifierKey, signature: bytes) -> str:
    return f"{SIGNATURE_PREFIX}{key.name} {b64encode(key.key_id + signature).decode()}\n"


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
    def vkey(self) -> VerifierKey:
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
        fields = json.loads(text)
        origin, size = fields["origin"], fields["size"]
        seed, root = (b64decode(fields[name], validate=True) for name in ("key", "root"))
        if not (isinstance(origin, str) and isinstance(size, int)):
            raise TypeError
        if (len(seed), len(root)) != (SEED_BYTES, HASH_BYTES):
            raise ValueError
        return LogKey(origin, seed, size, root)
    except (ValueError, KeyError, TypeError):
        # The text has the key, so the cause is not named.
        raise KeyFileError(f"{path} is not a key file of the log") from None


def save_key(path: Path, key: LogKey) -> None:
    """Replace the file; once this returns, it is on the disk. KeyFileError if that fails."""
    fields = {
        "origin": key.origin,
        "key": b64encode(key.seed).decode(),
        "size": key.size,
        "root": b64encode(key.root).decode(),
    }
    text = f"{json.dumps(fields)}\n"
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        # A key that is lost ends the log, so the file is not replaced by one that does not have it.
        if unfinished.read_text(encoding="utf-8") != text:
            raise OSError(f"{unfinished} does not have what was written")
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


# Called with the outcome of each new checkpoint, signed or refused, and "cosigned" by a witness.
OnCheckpoint = Callable[[str], None]
# Takes the newest checkpoint and the time (epoch s).
Submit = Callable[[CheckpointRow, int], None]
Used = TypeVar("Used")

log = structlog.get_logger("compute")


class RefusalError(Exception):
    """The log must not sign; the message is public, and says why."""


class LogSigner:
    """Signs the log of a store with the key in a file, which it creates at the first start."""

    def __init__(
        self,
        feed_log: FeedLog,
        path: Path,
        origin: str,
        clock: Clock,
        on_checkpoint: OnCheckpoint = lambda outcome: None,
        submit: Submit = lambda checkpoint, now: None,
    ) -> None:
        """Take the path of the key file; a new key gets the origin.

        `clock` returns the time (epoch ms) that is signed. `submit` is called with the newest
        checkpoint, for witnesses.
        """
        self._log: Final = feed_log
        self._path: Final = path
        self._origin: Final = origin
        self._clock: Final = clock
        self._on_checkpoint: Final = on_checkpoint
        self._submit: Final = submit

    async def sign(self) -> None:
        """Sign the tree that is stored now, with the time, and store the checkpoint.

        A tree that was signed before is signed again, so that customers see that the log is not
        frozen, and keeps its cosignatures. If signing is refused, store the reason instead; the
        next call tries again. Raise StoreError if the database fails.
        """
        try:
            old_key, key = await self._compare_key()
            # Before the checkpoint is served: no other tree of this size is signed from now on.
            if key != old_key:
                await self._use_file(save_key, self._path, key)
        except RefusalError as refusal:
            # Stored and logged once; the cause may name a path, so it is only logged.
            stored, reason = await self._log.checkpoint(), str(refusal)
            if reason != stored.refusal:
                cause = {} if refusal.__cause__ is None else {"cause": str(refusal.__cause__)}
                log.error("log_not_signed", reason=reason, **cause, remedy="run `signals doctor`")
                await self._log.save_checkpoint(stored._replace(refusal=reason))
            self._on_checkpoint("refused")
            return
        vkey, now = str(key.vkey), self._clock() // 1000
        note = sign_checkpoint(key.origin, key.size, key.root, key.private_key, now)
        signed = await self._log.save_checkpoint(CheckpointRow(key.size, note, vkey))
        self._on_checkpoint("signed")
        self._submit(signed, now)

    async def restart(self, now: datetime) -> tuple[VerifierKey, Path | None]:
        """Begin a new log of the same rows: archive the key file, and sign with another key.

        Return the new key, and the path of the archived file, None if there was none.
        """
        origin: str | None = None
        with suppress(KeyFileError):
            if (old_key := await asyncio.to_thread(load_key, self._path)) is not None:
                origin = old_key.origin
        if origin is None and (vkey := (await self._log.checkpoint()).vkey) is not None:
            origin = vkey.partition("+")[0]
        archive = self._path.with_name(f"{self._path.name}.{now:%Y%m%dT%H%M%SZ}")
        has_file = await asyncio.to_thread(archive_key, self._path, archive)
        key = LogKey.create(self._origin if origin is None else name_next_origin(origin))
        await asyncio.to_thread(save_key, self._path, key)
        await self.sign()
        return key.vkey, archive if has_file else None

    async def find_refusal(self) -> str | None:
        """Say why the tree that is stored now would not be signed; change nothing."""
        try:
            await self._compare_key()
        except RefusalError as refusal:
            return str(refusal)
        return None

    async def _compare_key(self) -> tuple[LogKey | None, LogKey]:
        """Return the key in the file, and the same with the stored tree."""
        key = await self._use_file(load_key, self._path)
        try:
            head = await self._log.head(0 if key is None else key.size)
        except DamagedError as error:
            raise RefusalError("the stored tree of the log is damaged") from error
        if key is None and head.checkpoint.note is not None:
            raise RefusalError("the key file of the log is missing")
        old = key or LogKey.create(self._origin)
        if head.size < old.size:
            raise RefusalError(
                f"the store has fewer leaves than the {old.size} that were signed: an older copy "
                "of it was restored"
            )
        try:
            if head.size > old.size > 0:
                verify_consistency(old.size, old.root, head.size, head.root, head.proof)
            elif old.size and head.root != old.root:
                raise TreeError
        except TreeError:
            raise RefusalError(
                f"the first {old.size} leaves are not those that were signed"
            ) from None
        return key, old.with_tree(head.size, head.root)

    async def _use_file(self, use: Callable[..., Used], *arguments: object) -> Used:
        """Call a function of the key file in a thread; refuse if the file cannot be used."""
        try:
            return await asyncio.to_thread(use, *arguments)
        except KeyFileError as error:
            raise RefusalError("the key file of the log cannot be used") from error


def name_next_origin(origin: str) -> str:
    """Return the origin of the log that follows one: /2 at its end, then /3 and so on."""
    numbered = re.fullmatch(r"(.+)/(\d+)", origin)
    return f"{origin}/2" if numbered is None else f"{numbered[1]}/{int(numbered[2]) + 1}"
