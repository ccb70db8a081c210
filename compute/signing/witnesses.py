"""Asks the witnesses of a policy file to cosign the newest checkpoint, and verifies what they sign.

The formats are C2SP's tlog-policy, tlog-cosignature and tlog-witness. This happens beside the runs:
a witness that does not answer is asked again until the next checkpoint.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from itertools import chain, repeat
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx2
import structlog

from schemas.errors import OperatorError, describe_failure
from store.failure_log import FailureLog
from store.market_rows import CheckpointRow
from store.sql.transparency_log import FeedLog
from store.store_errors import StoreError
from verifier.notes import (
    Checkpoint,
    NoteError,
    PolicyError as InvalidPolicyError,
    VerifierKey,
    parse_policy,
)


def find_cosignature(vkey: VerifierKey, note: str, lines: str) -> tuple[str, int] | None:
    """Return the line with the valid cosignature of a witness, and its time (epoch s)."""
    text = note.partition("\n\n")[0]
    for line in lines.splitlines():
        with suppress(NoteError):
            time = Checkpoint.parse(f"{text}\n\n{line}\n").find_cosigned_time(vkey)
            if time is not None:
                return f"{line}\n", int(time.timestamp())
    return None


class Witness(NamedTuple):
    """A witness: its name in the policy, its key, and its submission prefix."""

    name: str
    vkey: VerifierKey
    url: str


class PolicyError(OperatorError):
    """A policy file that the operator must correct."""


def load_witnesses(path: Path) -> list[Witness]:
    """Return the witnesses of a policy file that have an address; PolicyError if there is none."""
    try:
        policy = parse_policy(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise PolicyError(f"cannot read the witness policy {path}: {error}") from error
    except InvalidPolicyError as error:
        raise PolicyError(f"{path}: {error}") from error
    if not policy.urls:
        raise PolicyError(
            f"{path}: no witness has an address; expected lines such as "
            "witness NAME VKEY https://witness.example/"
        )
    for name, address in policy.urls.items():
        if not _is_prefix(address):
            raise PolicyError(
                f"{path}: witness {name}: expected an http(s):// address without query or fragment"
            )
    return [
        Witness(name, policy.witnesses[name], url.rstrip("/")) for name, url in policy.urls.items()
    ]


def _is_prefix(address: str) -> bool:
    """Return whether a path can be appended to an address, which has a host and a valid port."""
    try:
        url = urlsplit(address)
        is_plain = not url.query and not url.fragment and url.port != 0
    except ValueError:
        return False
    return is_plain and url.scheme in ("http", "https") and bool(url.hostname)


TIMEOUT_S = 10.0
# Customers count a cosignature for a day.
RENEW_AFTER_S = 6 * 3600
# The last one repeats.
RETRY_DELAYS_S = (5, 15, 60, 300, 600)
MAX_ANSWER_BYTES = 64 * 1024
Sleep = Callable[[float], Awaitable[object]]

log = structlog.get_logger("compute")


class WitnessError(Exception):
    """A witness that did not cosign; the message says why."""


class Witnesses:
    """Collects the cosignatures of witnesses in the stored checkpoint."""

    def __init__(
        self,
        feed_log: FeedLog,
        witnesses: Sequence[Witness],
        on_cosigned: Callable[[], None] = lambda: None,
        sleep: Sleep = asyncio.sleep,
        failures: FailureLog | None = None,
        proxy: str | None = None,
    ) -> None:
        """`on_cosigned` is called for each cosignature; `sleep` waits for seconds."""
        self._log: Final = feed_log
        self._witnesses: Final = witnesses
        self._on_cosigned: Final = on_cosigned
        self._sleep: Final = sleep
        self._failures: Final = failures or FailureLog()
        transport = httpx2.AsyncHTTPTransport(proxy=proxy)
        self._http: Final = httpx2.AsyncClient(timeout=TIMEOUT_S, transport=transport)
        # The size that each witness cosigned last; 0 makes it say so.
        self._cosigned_sizes = dict.fromkeys(witnesses, 0)
        self._submitted: tuple[int, str | None] | None = None
        self._renew_at = 0
        self._task: asyncio.Task[None] | None = None

    def submit(self, checkpoint: CheckpointRow, now: int) -> None:
        """Begin to ask for cosignatures of a checkpoint, instead of those of an older one.

        Those of the same tree are renewed after some hours; `now` is in epoch s.
        """
        tree = checkpoint.size, checkpoint.vkey
        if checkpoint.note is None or (self._submitted == tree and now < self._renew_at):
            return
        self._submitted, self._renew_at = tree, now + RENEW_AFTER_S
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._collect(checkpoint, checkpoint.note, now))

    async def settle(self) -> None:
        """Wait until the newest checkpoint is cosigned, as long as one attempt may take."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=TIMEOUT_S)

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._http.aclose()

    async def _collect(self, row: CheckpointRow, note: str, now: int) -> None:
        """Ask all witnesses at once, and those that failed again after each delay."""
        checkpoint, since = Checkpoint.parse(note), now - RENEW_AFTER_S
        found = {each: find_cosignature(each.vkey, note, note) for each in self._witnesses}
        pending = [each for each, one in found.items() if one is None or one[1] <= since]
        delays_s = chain(RETRY_DELAYS_S, repeat(RETRY_DELAYS_S[-1]))
        while pending:
            lines = await asyncio.gather(*(self._ask(each, checkpoint, note) for each in pending))
            cosigned = {each: line for each, line in zip(pending, lines, strict=True) if line}
            if await self._store(row, [*cosigned.values()]):
                pending = [each for each in pending if each not in cosigned]
            if pending:
                await self._sleep(next(delays_s))

    async def _store(self, row: CheckpointRow, lines: Sequence[str]) -> bool:
        """Add cosignatures to the stored checkpoint; return whether that succeeded."""
        try:
            await self._log.add_cosignatures(row, lines)
        except StoreError as error:
            self._failures.write(log.warning, "cosignatures_not_stored", {"reason": str(error)})
            return False
        for _ in lines:
            self._on_cosigned()
        return True

    async def _ask(self, witness: Witness, checkpoint: Checkpoint, note: str) -> str | None:
        """Return the line with a witness's cosignature, None if it did not cosign."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, answer = await self._add_checkpoint(witness, checkpoint, note)
                if status == HTTPStatus.CONFLICT:
                    # The size that the witness cosigned last.
                    text = answer.removesuffix("\n")
                    if not (text.isascii() and text.isdigit() and len(text) < 20):
                        raise WitnessError("status 409 without a size")
                    if int(text) > checkpoint.size:
                        raise WitnessError(
                            f"it has cosigned {text} rows, more than the {checkpoint.size} of this "
                            "checkpoint"
                        )
                    self._cosigned_sizes[witness] = int(text)
                    status, answer = await self._add_checkpoint(witness, checkpoint, note)
                if status != HTTPStatus.OK:
                    raise WitnessError(f"status {status}")
                found = find_cosignature(witness.vkey, note, answer)
                if found is None:
                    raise WitnessError("its response has no valid cosignature")
                self._cosigned_sizes[witness] = checkpoint.size
                return found[0]
        except (WitnessError, StoreError) as error:
            reason = str(error)
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = type(error).__name__
        # An unexpected failure with one must not keep the lines of the others.
        except Exception as error:
            cause = {"witness": witness.name, **describe_failure(error)}
            self._failures.write(log.error, "witness_failed", cause)
            return None
        cause = {"witness": witness.name, "reason": reason}
        self._failures.write(log.warning, "witness_failed", cause)
        return None

    async def _add_checkpoint(
        self, witness: Witness, checkpoint: Checkpoint, note: str
    ) -> tuple[int, str]:
        """Submit a checkpoint with the proof from the size that the witness cosigned last."""
        old = self._cosigned_sizes[witness]
        proof = await self._log.prove_consistency(old, checkpoint.size)
        lines = [f"old {old}", *(b64encode(each).decode() for each in proof)]
        body = "\n".join(lines) + f"\n\n{note}"
        request = self._http.stream("POST", f"{witness.url}/add-checkpoint", content=body.encode())
        answer = b""
        async with request as response:
            async for part in response.aiter_bytes():
                answer += part
                if len(answer) > MAX_ANSWER_BYTES:
                    raise WitnessError("its response is too long")
        return response.status_code, answer.decode(errors="replace")
