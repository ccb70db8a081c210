"""`signals verify`: checks a service against its log, and the customer's record of it."""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
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
    PolicyError,
    VerifierKey,
    parse_policy,
)
from verifier.record import Record
from verifier.report import Report, VerifyError
from verifier.served_rows import read_feed, read_rows_file
from verifier.verification import Request, Verification, check_proof

T = TypeVar("T")
read = partial(Path.read_text, encoding="utf-8")


async def verify_service(
    address: str,
    api_key: str,
    folder: Path | None,
    clock: Clock,
    *,
    rows: Path | None = None,
    since: str | None = None,
    policy: Path | None = None,
    vkey: str | None = None,
    proof: Path | None = None,
    compare: Path | None = None,
    own: Path | None = None,
    prove: str | None = None,
    answers: bool = False,
) -> int:
    """Verify a service and print the report; return its exit status.

    The options are those of the command line, None if not given.
    """
    # The default folder is that of the service's address.
    record = Record(folder or find_verify_folder(address))
    if prove is not None:
        try:
            print(record.prove(prove), end="")
        except VerifyError as error:
            raise OperatorError(f"--prove: {error}") from None
        return 0
    given_proof = read_option_file("proof", proof, lambda path: InclusionProof.parse(read(path)))
    if given_proof is not None:
        report = verify_proof(given_proof, record, rows=rows, policy=policy, vkey=vkey)
        print("\n".join(report.format_lines()))
        return report.status
    now_ms = clock()
    now, since_ms = to_datetime(now_ms), parse_since(since, now_ms)
    request = Request(
        given_rows=tuple(read_option_file("rows", rows, read_rows_file) or ()),
        reads_feed=rows is None or since_ms is not None,
        since=None if since_ms is None else to_datetime(since_ms),
        own_rows=tuple(read_option_file("own", own, read_rows_file) or ()),
        key=parse_key(vkey),
        policy=read_option_file("policy", policy, lambda path: parse_policy(read(path))),
        other=read_option_file("compare", compare, lambda path: Checkpoint.parse(read(path))),
    )
    with open_progress_bar("reading") as on_progress:
        # The agent of all commands, so that a service cannot tell who verifies it.
        agent, proxy = f"signals/{VERSION}", find_proxy(address)
        async with ServiceClient(address, api_key, agent, proxy=proxy) as client:
            verification = Verification(client, record, now, on_progress)
            report = await verification.run(request)
            if answers:
                # It loads the validator of schemas, which the other checks do not need.
                from verifier.answers import audit_answers

                try:
                    feed = verification.feed or await read_feed(
                        client, request.since, now, on_progress
                    )
                    await audit_answers(client, feed, on_progress, report)
                except VerifyError as error:
                    report.obstacles.append(str(error))
    print("\n".join(report.format_lines()))
    return report.status


def verify_proof(
    proof: InclusionProof,
    record: Record,
    *,
    rows: Path | None = None,
    policy: Path | None = None,
    vkey: str | None = None,
) -> Report:
    """Verify a proof of one of the given rows without a network."""
    given_policy = read_option_file("policy", policy, lambda path: parse_policy(read(path)))
    logs = given_policy.logs if given_policy else []
    known = next((key for key in logs if key.name == proof.checkpoint.origin), None)
    key = parse_key(vkey) or known or record.load_key()
    if key is None:
        raise OperatorError("--proof needs the key of the log: give --vkey or a --policy with it")
    given_rows = read_option_file("rows", rows, read_rows_file)
    if given_rows is None:
        raise OperatorError("--proof needs --rows FILE with the row that it proves")
    return check_proof(proof, given_rows, key, given_policy)


def read_option_file(option: str, path: Path | None, parse: Callable[[Path], T]) -> T | None:
    """Return the content of the file of an option; OperatorError if it cannot be read."""
    try:
        return None if path is None else parse(path)
    except (VerifyError, NoteError, PolicyError, OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"--{option} {path}: {error}") from None


def parse_key(vkey: str | None) -> VerifierKey | None:
    """Return the given key; OperatorError if it is none."""
    try:
        return None if vkey is None else VerifierKey.parse(vkey, LOG_KEY)
    except NoteError as error:
        raise OperatorError(f"--vkey: {error}") from None


def parse_since(since: str | None, now: int) -> int | None:
    """Return the time to read from in epoch ms, given in any form that the feed accepts."""
    if since is None:
        return None
    from serving.argument_values import parse_instant_ms, resolve_relative_time

    try:
        return parse_instant_ms("--since", resolve_relative_time(since, now))
    except ApiError as error:
        raise ArgumentsError(str(error)) from None


def to_datetime(epoch_ms: int) -> datetime:
    """Return epoch milliseconds as a time."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


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
