"""`signals verify`: checks a service against its log, and against the customer's record of it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from schemas.clock import Clock
from schemas.operator_error import OperatorError
from service.commands.console import open_progress_bar
from verifier.client import ServiceClient
from verifier.notes import (
    LOG_KEY,
    InclusionProof,
    NoteError,
    Policy,
    PolicyError,
    VerifierKey,
    parse_policy,
)
from verifier.record import Record
from verifier.report import Report, VerifyError
from verifier.rows import Row, read_rows_file
from verifier.verification import Request, Verification, check_proof

T = TypeVar("T")


@dataclass(frozen=True)
class VerifyOptions:
    """The options of the command line that say what to verify, None if not given.

    `since` is in epoch ms.
    """

    rows: Path | None = None
    since: int | None = None
    policy: Path | None = None
    vkey: str | None = None
    proof: Path | None = None

    def read_rows(self) -> tuple[Row, ...]:
        """Return the rows of the file, none without one."""
        return () if self.rows is None else tuple(_read(self.rows, "--rows", read_rows_file))

    def read_policy(self) -> Policy | None:
        """Return the policy of the file."""
        return None if self.policy is None else _read(self.policy, "--policy", _parse_policy_file)

    def read_proof(self) -> InclusionProof | None:
        """Return the proof of the file."""
        return None if self.proof is None else _read(self.proof, "--proof", _parse_proof_file)

    def parse_key(self) -> VerifierKey | None:
        """Return the given key."""
        try:
            return None if self.vkey is None else VerifierKey.parse(self.vkey, LOG_KEY)
        except NoteError as error:
            raise OperatorError(f"--vkey: {error}") from None

    def build_request(self) -> Request:
        """Read the files and return what to verify; OperatorError if one cannot be read."""
        return Request(
            given_rows=self.read_rows(),
            reads_feed=self.rows is None or self.since is not None,
            since=None if self.since is None else to_datetime(self.since),
            key=self.parse_key(),
            policy=self.read_policy(),
        )


def _read(path: Path, option: str, parse: Callable[[Path], T]) -> T:
    try:
        return parse(path)
    except (VerifyError, NoteError, PolicyError, OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{option} {path}: {error}") from None


def _parse_policy_file(path: Path) -> Policy:
    return parse_policy(path.read_text(encoding="utf-8"))


def _parse_proof_file(path: Path) -> InclusionProof:
    return InclusionProof.parse(path.read_text(encoding="utf-8"))


def to_datetime(epoch_ms: int) -> datetime:
    """Return epoch milliseconds as a time."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


async def verify_service(
    address: str,
    api_key: str,
    folder: Path,
    options: VerifyOptions,
    clock: Clock,
) -> int:
    """Verify a service and print the report; return its exit status."""
    proof = options.read_proof()
    if proof is None:
        report = await _verify_online(address, api_key, Record(folder), options, clock)
    else:
        report = verify_proof(proof, Record(folder), options)
    print("\n".join(report.format_lines()))
    return report.status


async def _verify_online(
    address: str,
    api_key: str,
    record: Record,
    options: VerifyOptions,
    clock: Clock,
) -> Report:
    request = options.build_request()
    with open_progress_bar("reading") as on_progress:
        async with ServiceClient(address, api_key) as client:
            verification = Verification(client, record, lambda: to_datetime(clock()), on_progress)
            return await verification.run(request)


def verify_proof(proof: InclusionProof, record: Record, options: VerifyOptions) -> Report:
    """Verify a proof of one of the given rows without a network."""
    policy = options.read_policy()
    logs = policy.logs if policy else []
    known = next((key for key in logs if key.name == proof.checkpoint.origin), None)
    key = options.parse_key() or known or record.load_key()
    if key is None:
        raise OperatorError("--proof needs the key of the log: give --vkey or a --policy with it")
    if options.rows is None:
        raise OperatorError("--proof needs --rows FILE with the row that it proves")
    return check_proof(proof, list(options.read_rows()), key, policy)
