"""Keys and checkpoints, compared with the example of signed-note and another implementation."""

from base64 import b64decode
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from tlog_scales import signing, tlog

from compute.signing.notes import Checkpoint, NoteError, Vkey, build_vkey, sign_checkpoint

pytestmark = pytest.mark.clause("proof")

# The example of C2SP's signed-note.
VKEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
TEXT = "This is an example message.\n"
SIGNATURE = (
    "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM="
)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
CHECKPOINT = Checkpoint("signals.example/api/v1/log", 70_000, sha256(b"root").digest())


def test_the_key_of_the_specification_is_read_and_written() -> None:
    vkey = Vkey.parse(VKEY)
    assert vkey.name == "example.com/foo"
    assert vkey.format() == VKEY
    signature = b64decode(SIGNATURE)
    assert vkey.key_id == signature[:4]
    Ed25519PublicKey.from_public_bytes(vkey.public_key).verify(signature[4:], TEXT.encode())


@pytest.mark.parametrize(
    "text",
    ["", "name", "a+b", "example.com/foo+530d903a+", VKEY.replace("530d", "530e"), f"{VKEY}*"],
)
def test_a_key_that_is_not_valid_is_refused(text: str) -> None:
    with pytest.raises(NoteError, match="key"):
        Vkey.parse(text)


def test_another_implementation_reads_a_signed_checkpoint() -> None:
    note, vkey = sign_checkpoint(CHECKPOINT, KEY), build_vkey(CHECKPOINT.origin, KEY)
    read = tlog.Checkpoint.from_text(note)
    assert (read.origin, read.size, read.root_hash) == CHECKPOINT
    read.verify(signing.Vkey.from_string(vkey.format()))
    same = signing.PlainEd25519Signer(CHECKPOINT.origin, KEY)
    assert note == tlog.Checkpoint.make_signed(*CHECKPOINT, [same]).serialize()


def test_a_checkpoint_is_read_from_its_note() -> None:
    assert Checkpoint.parse(sign_checkpoint(CHECKPOINT, KEY)) == CHECKPOINT
    with pytest.raises(NoteError, match="not a checkpoint"):
        Checkpoint.parse("signals.example\nmany\n")
