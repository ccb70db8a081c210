"""`signals verify`: checks a service against its log, and the customer's record of it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from schemas.errors import ApiError, ArgumentsError, OperatorError
from schemas.version import VERSION
from schemas.vocabulary import Clock
from service.commands.console import open_progress_bar
from service.config.settings import find_proxy
from verifier.client import ServiceClient
from verifier.notes import (
    LOG_KEY,
    Checkpoint,
    InclusionProof,
    NoteError,
    Policy,
    PolicyError,
    VerifierKey,
    parse_policy,
)
from verifier.record import Record
from verifier.report import Report, VerifyError
from verifier.rows import read_feed, read_rows_file
from verifier.verification import Request, Verification, check_proof

T = TypeVar("T")


@dataclass(frozen=True)
class VerifyOptions:
    """The options of the command line that say what to verify, None if not given."""

    rows: Path | None = None
    since: str | None = None
    policy: Path | None = None
    vkey: str | None = None
    proof: Path | None = None
    compare: Path | None = None
    own: Path | None = None
    prove: str | None = None
    answers: bool = False

    def read_file(self, option: str, parse: Callable[[Path], T]) -> T | None:
        """Return what the file of an option holds; OperatorError if it cannot be read."""
        path = getattr(self, option)
        try:
            return None if path is None else parse(path)
        except (VerifyError, NoteError, PolicyError, OSError, UnicodeDecodeError) as error:
            raise OperatorError(f"--{option} {path}: {error}") from None

    def read_policy(self) -> Policy | None:
        """Return the policy of the file."""
        return self.read_file("policy", lambda path: parse_policy(path.read_text("utf-8")))

    def parse_key(self) -> VerifierKey | None:
        """Return the given key."""
        try:
            return None if self.vkey is None else VerifierKey.parse(self.vkey, LOG_KEY)
        except NoteError as error:
            raise OperatorError(f"--vkey: {error}") from None

    def find_since(self, now: int) -> int | None:
        """Return the time to read from in epoch ms, given in any form that the feed accepts."""
        if self.since is None:
            return None
        from serving.argument_values import parse_instant_ms, resolve_relative_time

        try:
            return parse_instant_ms("--since", resolve_relative_time(self.since, now))
        except ApiError as error:
            raise ArgumentsError(str(error)) from None


def to_datetime(epoch_ms: int) -> datetime:
    """Return epoch milliseconds as a time."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


async def verify_service(
    address: str, api_key: str, folder: Path | None, options: VerifyOptions, clock: Clock
) -> int:
    """Verify a service and print the report; return its exit status."""
    # The default folder is that of the service's address.
    record = Record(folder or find_verify_folder(address))
    if options.prove is not None:
        try:
            print(record.prove(options.prove), end="")
        except VerifyError as error:
            raise OperatorError(f"--prove: {error}") from None
        return 0
    proof = options.read_file("proof", lambda path: InclusionProof.parse(path.read_text("utf-8")))
    if proof is None:
        report = await _verify_online(address, api_key, record, options, clock)
    else:
        report = verify_proof(proof, record, options)
    print("\n".join(report.format_lines()))
    return report.status


async def _verify_online(
    address: str, api_key: str, record: Record, options: VerifyOptions, clock: Clock
) -> Report:
    now_ms = clock()
    since_ms = options.find_since(now_ms)
    request = Request(
        given_rows=tuple(options.read_file("rows", read_rows_file) or ()),
        reads_feed=options.rows is None or since_ms is not None,
        since=None if since_ms is None else to_datetime(since_ms),
        own_rows=tuple(options.read_file("own", read_rows_file) or ()),
        key=options.parse_key(),
        policy=options.read_policy(),
        other=options.read_file("compare", lambda path: Checkpoint.parse(path.read_text("utf-8"))),
    )
    now = to_datetime(now_ms)
    with open_progress_bar("reading") as on_progress:
        # The agent of all commands, so that a service cannot tell who verifies it.
        agent, proxy = f"signals/{VERSION}", find_proxy(address)
        async with ServiceClient(address, api_key, agent, proxy=proxy) as client:
            verification = Verification(client, record, now, on_progress)
            report = await verification.run(request)
            if options.answers:
                # It loads the validator of schemas, which the other checks do not need.
                from verifier.answers import audit_answers

                try:
                    feed = verification.feed or await read_feed(
                        client, request.since, now, on_progress
                    )
                    await audit_answers(client, feed, on_progress, report)
                except VerifyError as error:
                    report.obstacles.append(str(error))
    return report


def verify_proof(proof: InclusionProof, record: Record, options: VerifyOptions) -> Report:
    """Verify a proof of one of the given rows without a network."""
    policy = options.read_policy()
    logs = policy.logs if policy else []
    known = next((key for key in logs if key.name == proof.checkpoint.origin), None)
    key = options.parse_key() or known or record.load_key()
    if key is None:
        raise OperatorError("--proof needs the key of the log: give --vkey or a --policy with it")
    rows = options.read_file("rows", read_rows_file)
    if rows is None:
        raise OperatorError("--proof needs --rows FILE with the row that it proves")
    return check_proof(proof, rows, key, policy)


DEFAULT_PORTS = {"http": 80, "https": 443}


def find_verify_folder(address: str, environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder for the record that a customer keeps of the service at an address."""
    variables = os.environ if environment is None else environment
    home = variables.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    parts = urlsplit(address)
    port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    # A service below a path has a record of its own.
    path = parts.path.strip("/").replace("/", "_")
    name = "_".join(filter(None, (parts.hostname, str(port), path)))
    return Path(home, "signals", "verify", name)
