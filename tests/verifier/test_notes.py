"""Notes and keys, by the examples of C2SP signed-note and by keys of the library tlog-scales."""

import base64

import pytest
from tlog_scales.signing import PlainEd25519Signer
from tlog_scales.tlog import Checkpoint as OtherCheckpoint

from verifier.notes import COSIGNER_KEY, LOG_KEY, Checkpoint, NoteError, SignedNote, VerifierKey

pytestmark = pytest.mark.clause("verify")

EXAMPLE_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
EXAMPLE_NOTE = (
    "This is an example message.\n\n"
    "— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXm"
    "RKuwHjG1Yu72IneyaQM=\n"
)
KEY = VerifierKey.parse(EXAMPLE_KEY, LOG_KEY)
SIGNER = PlainEd25519Signer("example.com/log", bytes(range(32)))


def make_checkpoint(origin: str = "example.com/log") -> str:
    return OtherCheckpoint.make_signed(origin, 7, bytes(32), [SIGNER]).serialize()


def test_the_example_of_the_specification_verifies():
    assert SignedNote.parse(EXAMPLE_NOTE).is_signed_by(KEY)
    assert str(KEY) == EXAMPLE_KEY


def test_a_changed_text_does_not_verify():
    assert not SignedNote.parse(EXAMPLE_NOTE.replace("example m", "other m")).is_signed_by(KEY)


def test_signatures_of_unknown_keys_are_ignored_and_a_bad_one_of_the_key_is_not():
    unknown = "— example.com/bar " + base64.b64encode(bytes(68)).decode() + "\n"
    bad = "— example.com/foo " + base64.b64encode(KEY.key_id + bytes(64)).decode() + "\n"
    assert SignedNote.parse(EXAMPLE_NOTE + unknown).is_signed_by(KEY)
    assert not SignedNote.parse(EXAMPLE_NOTE + bad).is_signed_by(KEY)
    assert not SignedNote.parse("text\n\n" + unknown).is_signed_by(KEY)


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        ("", "no signatures"),
        ("text\n", "no signatures"),
        (EXAMPLE_NOTE[:-1], "no signatures"),
        ("text\n\n- example.com/foo AAAA\n", "not a signature line"),
        ("text\n\n— AAAA\n", "the signature of AAAA is too short"),
        ("text\n\n— a+b AAAAAAAA\n", "not a signature line"),
        ("text\n\n— name AAA\n", "not base64"),
        ("text\n\n— name AAAA\n", "too short"),
        ("te\rxt\n\n— name AAAAAAAA\n", "control characters"),
        ("x" * 1_000_001, "too long"),
    ],
)
def test_a_malformed_note_is_refused_with_the_reason(note, reason):
    with pytest.raises(NoteError, match=reason):
        SignedNote.parse(note)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("example.com/foo", "not a verifier key"),
        ("+530d903a+Aeky", "not a verifier key"),
        ("a b+530d903a+Aeky", "not a verifier key"),
        ("a" * 256 + "+530d903a+Aeky", "not a verifier key"),
        (EXAMPLE_KEY.replace("530d903a", "530d903b"), "has the id 530d903a, not 530d903b"),
        (EXAMPLE_KEY[:-4], "does not have 32 bytes"),
        (EXAMPLE_KEY.replace("+AekyeR", "+A*kyeR"), "not base64"),
        (EXAMPLE_KEY.replace("+Ae", "+Be"), "signature type 05"),
    ],
)
def test_a_malformed_key_is_refused_with_the_reason(text, reason):
    with pytest.raises(NoteError, match=reason):
        VerifierKey.parse(text, LOG_KEY)


def test_the_key_of_a_log_is_no_key_of_a_witness():
    with pytest.raises(NoteError, match="signature type 01, but 04 is needed here"):
        VerifierKey.parse(EXAMPLE_KEY, COSIGNER_KEY)


def test_a_checkpoint_of_another_implementation_verifies():
    key = VerifierKey.parse(SIGNER.vkey.serialize(), LOG_KEY)
    checkpoint = Checkpoint.parse(make_checkpoint())
    assert (checkpoint.origin, checkpoint.size, checkpoint.root) == (key.name, 7, bytes(32))
    assert checkpoint.is_signed_by(key)
    assert checkpoint.source == make_checkpoint()


def test_a_checkpoint_under_a_foreign_origin_does_not_verify():
    key = VerifierKey.parse(SIGNER.vkey.serialize(), LOG_KEY)
    checkpoint = Checkpoint.parse(make_checkpoint("example.com/other"))
    assert checkpoint.note.is_signed_by(key)
    assert not checkpoint.is_signed_by(key)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n7\n", "\n07\n"),
        ("\n7\n", "\n-7\n"),
        ("\n7\n", "\n" + "9" * 30 + "\n"),
        ("\n7\n", "\n\n"),
        ("A" * 43 + "=", "AAAA"),
        ("A" * 43 + "=", "?"),
        ("\n7\n" + "A" * 43 + "=", ""),
        ("example.com/log\n7", "x" * 256 + "\n7"),
    ],
)
def test_a_malformed_checkpoint_is_refused(old, new):
    text = make_checkpoint()
    assert old in text
    with pytest.raises(NoteError):
        Checkpoint.parse(text.replace(old, new))
