"""`signals witness`: cosigns the checkpoints of another log, as C2SP's tlog-witness says.

The key file also has the tree that was cosigned last, so no other history is ever cosigned.
"""

from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from compute.signing.log_signer import (
    KeyFileError,
    LogKey,
    build_cosigner,
    cosign,
    load_key,
    save_key,
)
from schemas.errors import ApiError, OperatorError
from schemas.vocabulary import Clock
from service.commands.console import echo
from service.http.server import build_server_config, open_listener, serve_in_background
from service.processes.lifecycle import listen_for_shutdown, lock_file
from serving.error_responses import CLIENT_CLOSED_REQUEST
from serving.http import read_body
from store.log_tree import TreeError, verify_consistency
from verifier.notes import (
    LOG_KEY,
    Checkpoint,
    NoteError,
    VerifierKey,
    decode_base64,
    is_key_name,
    parse_number,
)

HOST = "127.0.0.1"
MAX_PROOF_LINES, MAX_CONNECTIONS = 63, 16


async def run_witness(key_file: Path, name: str, log: str, port: int, clock: Clock) -> int:
    """Cosign the checkpoints of a log, given by its verifier key, until interrupted."""
    try:
        log_key = VerifierKey.parse(log, LOG_KEY)
    except NoteError as error:
        raise OperatorError(f"--log: {error}") from None
    # Two witnesses of one file would cosign two histories.
    with (
        lock_file(key_file),
        listen_for_shutdown() as cancel_on_request,
        open_listener(HOST, port) as listener,
    ):
        witness = Witness(key_file, name, log_key, clock)
        echo(f"Cosigning {log}. The line for the policy of its operator, with your address:")
        echo(f"witness NAME {witness.vkey} http://{HOST}:{listener.getsockname()[1]}")
        config = build_server_config(build_app(witness), max_connections=MAX_CONNECTIONS)
        with cancel_on_request():
            async with serve_in_background(config, listener) as serving:
                await serving
    return 0


class Witness:
    """A witness of one log, with the key in a file, which it creates at the first start."""

    def __init__(self, path: Path, name: str, log: VerifierKey, clock: Clock) -> None:
        """OperatorError if the file is that of another witness or cannot be used."""
        if not is_key_name(name):
            raise OperatorError("--name must be a name such as witness.example/w1")
        self._path, self._log, self._clock = path, log, clock
        saved = load_key(path)
        self._key = saved or LogKey.create(name)
        if self._key.origin != name:
            raise OperatorError(f"{path} is the key file of {self._key.origin}")
        if saved is None:
            save_key(path, self._key)

    @property
    def vkey(self) -> VerifierKey:
        """The key that verifies the cosignatures."""
        return build_cosigner(self._key.origin, self._key.private_key)

    def add_checkpoint(self, request: str) -> tuple[HTTPStatus, str]:
        """Return the status and the body that answer a request: the cosignature if that is OK.

        Nothing else runs meanwhile, so no other checkpoint comes between the check and the file.
        """
        head, _, note = request.partition("\n\n")
        first, *lines = head.split("\n")
        try:
            old, proof = parse_number(first.removeprefix("old ")), [*map(decode_base64, lines)]
            checkpoint = Checkpoint.parse(note)
        except NoteError as error:
            return HTTPStatus.BAD_REQUEST, f"{error}\n"
        size, root = checkpoint.size, checkpoint.root
        if checkpoint.origin != self._log.name:
            return HTTPStatus.NOT_FOUND, "this log is unknown\n"
        if not checkpoint.is_signed_by(self._log):
            return HTTPStatus.FORBIDDEN, "the log did not sign this checkpoint\n"
        if old > size or len(proof) > MAX_PROOF_LINES:
            return HTTPStatus.BAD_REQUEST, "the old size or the proof is too large\n"
        key = self._key
        if old != key.size or (old == size and root != key.root):
            return HTTPStatus.CONFLICT, f"{key.size}\n"
        try:
            if 0 < old < size:
                verify_consistency(old, key.root, size, root, proof)
            elif proof:
                raise TreeError
        except (TreeError, ValueError):
            return HTTPStatus.UNPROCESSABLE_ENTITY, "the proof does not verify\n"
        # On the disk before it is sent: another tree of this size is never cosigned from now on.
        advanced = key.with_tree(size, root)
        try:
            save_key(self._path, advanced)
        except KeyFileError as error:
            echo(str(error))
            return HTTPStatus.SERVICE_UNAVAILABLE, "the tree cannot be saved\n"
        self._key = advanced
        return HTTPStatus.OK, cosign(
            key.origin, key.private_key, checkpoint.note.text, self._clock() // 1000
        )


def build_app(witness: Witness) -> Starlette:
    """Return the app of a witness, with the only path that a log needs."""

    async def add_checkpoint(request: Request) -> Response:
        try:
            content = await read_body(request.scope, request.receive)
        except ApiError as error:
            return PlainTextResponse(f"{error}\n", error.status)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        status, text = witness.add_checkpoint(content.decode(errors="replace"))
        return PlainTextResponse(
            text,
            status,
            media_type="text/x.tlog.size" if status == HTTPStatus.CONFLICT else "text/plain",
        )

    return Starlette(routes=[Route("/add-checkpoint", add_checkpoint, methods=["POST"])])
