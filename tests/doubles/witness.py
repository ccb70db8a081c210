"""A witness on a loopback port, after C2SP's tlog-witness; tests control it.

    async with open_witness(log_vkey) as witness:
        policy.write_text(f"witness W {witness.vkey} {witness.url}")

It checks signatures and proofs with another implementation than the service's.
"""

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tlog_scales.signing import MLDSA44CosignatureSigner, Vkey
from tlog_scales.tlog import Checkpoint, ConsistencyProof, ConsistencyProofInvalid

from tests.support.running_service import serve_app

EMPTY_ROOT = sha256().digest()


@dataclass
class WitnessDouble:
    """One witness of one log; `failures` are statuses that it answers first.

    `old_sizes` are those of the requests it got. `answers` replace its own bodies, for a witness
    that misbehaves.
    """

    log_vkeys: list[Vkey]
    name: str
    is_ml_dsa: bool
    url: str = ""
    size: int = 0
    root: bytes = EMPTY_ROOT
    time: int = 1_780_000_000
    failures: list[int] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    old_sizes: list[int] = field(default_factory=list)
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    ml_dsa_key: MLDSA44PrivateKey = field(default_factory=MLDSA44PrivateKey.generate)

    @property
    def vkey(self) -> Vkey:
        if self.is_ml_dsa:
            return MLDSA44CosignatureSigner(self.name, self.ml_dsa_key).vkey
        return Vkey(self.name, None, 4, self.key.public_key().public_bytes_raw())

    async def add_checkpoint(self, request: Request) -> Response:
        """Answer as the specification says."""
        head, _, note = (await request.body()).decode().partition("\n\n")
        old_line, *proof = head.split("\n")
        assert old_line.startswith("old ")
        assert len(proof) <= 63
        self.old_sizes.append(int(old_line.removeprefix("old ")))
        if self.failures:
            return Response(status_code=self.failures.pop(0))
        if self.answers:
            return PlainTextResponse(self.answers.pop(0))
        status = self._check(self.old_sizes[-1], [*map(b64decode, proof)], note)
        if status == 409:
            return Response(f"{self.size}\n", 409, media_type="text/x.tlog.size")
        if status != 200:
            return Response(status_code=status)
        checkpoint = Checkpoint.from_text(note)
        self.size, self.root = checkpoint.size, checkpoint.root_hash
        return PlainTextResponse(self.cosign(checkpoint))

    def _check(self, old: int, proof: list[bytes], note: str) -> int:
        """Return the status of a request."""
        checkpoint = Checkpoint.from_text(note)
        trusted = [vkey for vkey in self.log_vkeys if vkey.name == checkpoint.origin]
        if not trusted:
            return 404
        try:
            checkpoint.verify(trusted[0])
        except (InvalidSignature, RuntimeError):
            return 403
        if old > checkpoint.size:
            return 400
        if old != self.size:
            return 409
        if old == 0:
            return 200 if not proof else 422
        try:
            ConsistencyProof(old, checkpoint.size, proof).check(self.root, checkpoint.root_hash)
        except ConsistencyProofInvalid:
            return 422
        return 200

    def cosign(self, checkpoint: Checkpoint) -> str:
        """Return the line of a cosignature."""
        if self.is_ml_dsa:
            signer = MLDSA44CosignatureSigner(self.name, self.ml_dsa_key)
            return f"{signer.sign(checkpoint).serialize()}\n"
        message = f"cosignature/v1\ntime {self.time}\n{checkpoint.serialize_body()}".encode()
        payload = self.time.to_bytes(8) + self.key.sign(message)
        signed = b64encode(self.vkey.key_id.to_bytes(4) + payload).decode()
        return f"— {self.name} {signed}\n"


@asynccontextmanager
async def open_witness(
    *log_vkeys: str, name: str = "witness.example/w1", is_ml_dsa: bool = False
) -> AsyncIterator[WitnessDouble]:
    """Serve a witness of a log until the end of the block."""
    witness = WitnessDouble([*map(Vkey.from_string, log_vkeys)], name, is_ml_dsa)
    route = Route("/w1/add-checkpoint", witness.add_checkpoint, methods=["POST"])
    async with serve_app(lambda _: Starlette(routes=[route])) as address:
        witness.url = f"{address}/w1"
        yield witness
