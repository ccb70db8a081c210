"""Notes, keys and checkpoints of other software, and policies."""

import base64
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tlog_scales.signing import (
    Ed25519CosignatureVerifier,
    MLDSA44CosignatureSigner,
    PlainEd25519Signer,
    Vkey,
)
from tlog_scales.tlog import Checkpoint as OtherCheckpoint

from verifier.notes import (
    COSIGNER_KEY,
    LOG_KEY,
    Checkpoint,
    NoteError,
    PolicyError,
    SignedNote,
    VerifierKey,
    parse_policy,
)

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


LOG = PlainEd25519Signer("example.com/log", bytes(range(32)))
SIGNED = OtherCheckpoint.make_signed(LOG.vkey.name, 7, bytes(32), [LOG])


class Witness:
    """Cosigns checkpoints as the text of tlog-cosignature says."""

    def __init__(self, name: str, seed: int) -> None:
        self.key = Ed25519PrivateKey.from_private_bytes(bytes([seed] * 32))
        self.vkey = Vkey(name, None, 4, self.key.public_key().public_bytes_raw())

    def cosign(self, body: str, time: int = 1_700_000_000) -> str:
        signature = self.key.sign(f"cosignature/v1\ntime {time}\n{body}".encode())
        content = self.vkey.key_id.to_bytes(4, "big") + time.to_bytes(8, "big") + signature
        return f"— {self.vkey.name} {base64.b64encode(content).decode()}\n"


WITNESSES = [Witness(f"witness.example/{n}", n) for n in (1, 2, 3, 4)]
LINES = [f"witness W{n} {one.vkey.serialize()}" for n, one in enumerate(WITNESSES, 1)]
EXAMPLE = "\n".join(
    [
        "# two organisations",
        f"log {LOG.vkey.serialize()} https://example.com/log",
        "",
        f"\t{LINES[0]} https://witness.example/1 ",
        *LINES[1:],
        "group first 2 W1 W2 W3",
        "group both all first W4",
        "quorum both",
    ]
)


def cosign(*numbers: int) -> Checkpoint:
    lines = (WITNESSES[n - 1].cosign(SIGNED.serialize_body()) for n in numbers)
    return Checkpoint.parse(SIGNED.serialize() + "".join(lines))


def is_met(policy: str, *numbers: int) -> bool:
    parsed = parse_policy(policy)
    return parsed.is_met_by(parsed.list_cosigners(cosign(*numbers), None))


def test_another_implementation_accepts_the_same_cosignature():
    checkpoint = OtherCheckpoint.from_text(cosign(1).source)
    verifier = Ed25519CosignatureVerifier(WITNESSES[0].vkey)
    verifier.verify_note(checkpoint.signatures[1], checkpoint)
    assert parse_policy(EXAMPLE).list_cosigners(cosign(1), None) == ["W1"]


def test_a_post_quantum_cosignature_of_another_implementation_counts():
    signer = MLDSA44CosignatureSigner("witness.example/pq", bytes(range(32)))
    policy = parse_policy(f"witness PQ {signer.vkey.serialize()}\nquorum PQ")
    line = f"{signer.sign(SIGNED).serialize()}\n"
    cosigned = Checkpoint.parse(SIGNED.serialize() + line)
    assert policy.is_met_by(policy.list_cosigners(cosigned, None))
    grown = OtherCheckpoint.make_signed(LOG.vkey.name, 8, bytes(32), [LOG])
    assert policy.list_cosigners(Checkpoint.parse(grown.serialize() + line), None) == []


@pytest.mark.parametrize(
    ("cosigners", "expected"),
    [
        ((), False),
        ((1, 2, 3), False),
        ((1, 4), False),
        ((1, 3, 4), True),
        ((1, 2, 3, 4), True),
        ((4, 4, 4), False),
    ],
)
def test_the_quorum_counts_members_of_groups_of_groups(cosigners, expected):
    assert is_met(EXAMPLE, *cosigners) is expected


def test_a_quorum_can_be_one_witness_any_of_a_group_or_none():
    assert is_met(f"{LINES[0]}\nquorum W1", 1)
    assert not is_met(f"{LINES[0]}\nquorum W1", 2)
    assert is_met(f"{LINES[0]}\n{LINES[1]}\ngroup g any W1 W2\nquorum g", 2)
    assert is_met("quorum none")


def test_a_cosignature_of_another_time_or_text_does_not_count():
    moved = WITNESSES[0].cosign(SIGNED.serialize_body(), 1_700_000_001)
    name, content = moved[:-1].rsplit(" ", 1)
    raw = base64.b64decode(content)
    altered = raw[:4] + (1_700_000_002).to_bytes(8, "big") + raw[12:]
    policy = parse_policy(EXAMPLE)
    for line in (
        f"{name} {base64.b64encode(altered).decode()}\n",
        f"{name} {base64.b64encode(raw[:8]).decode()}\n",
        WITNESSES[0].cosign(SIGNED.serialize_body().replace("\n7\n", "\n8\n")),
    ):
        checkpoint = Checkpoint.parse(SIGNED.serialize() + line)
        assert checkpoint.is_signed_by(VerifierKey.parse(LOG.vkey.serialize(), LOG_KEY))
        assert policy.list_cosigners(checkpoint, None) == []


@pytest.mark.parametrize(
    ("time", "counts"),
    [
        (1_700_000_000, True),
        (1_700_000_000 - 86_000, True),
        (1_700_000_000 - 87_000, False),
        (1_700_000_000 + 300, True),
        (1_700_000_000 + 3600, False),
        (1, False),
        (1 << 62, False),
    ],
)
def test_a_cosignature_counts_within_a_day_of_now(time, counts):
    now = datetime.fromtimestamp(1_700_000_000, UTC)
    line = WITNESSES[0].cosign(SIGNED.serialize_body(), time)
    checkpoint = Checkpoint.parse(SIGNED.serialize() + line)
    assert parse_policy(EXAMPLE).list_cosigners(checkpoint, now) == ["W1"] * counts


def test_the_logs_of_a_policy_are_parsed():
    assert [str(key) for key in parse_policy(EXAMPLE).logs] == [LOG.vkey.serialize()]


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("", "no quorum line"),
        ("quorum none\nquorum none", "line 2: there are two quorum lines"),
        ("quorum W1", "line 1: W1 is not defined on a line above"),
        ("quora none", "line 1: 'quora' is none of log, witness, group, quorum"),
        ("quorum", "line 1: a quorum line does not have 0 items"),
        (f"{LINES[0]} a b", "line 1: a witness line does not have 4 items"),
        (f"{LINES[0]}\n{LINES[0]}", "line 2: the name W1 is already in use"),
        (f"{LINES[0]}\n{LINES[0].replace('W1', 'W2')}", "line 2: the key of .* occurs twice"),
        (f"witness none {WITNESSES[0].vkey.serialize()}", "the name none is already in use"),
        (f"witness W1 {LOG.vkey.serialize()}", "signature type 01, but 04 or 06"),
        (f"log {WITNESSES[0].vkey.serialize()}", "signature type 04, but 01"),
        (f"{LINES[0]}\ngroup g 2 W1", "line 2: 2 of 1 members cannot be required"),
        (f"{LINES[0]}\ngroup g 0 W1", "line 2: 0 of 1 members cannot be required"),
        (f"{LINES[0]}\ngroup g some W1", "line 2: 'some' is not a number"),
        (f"{LINES[0]}\ngroup g all", "line 2: a group line does not have 2 items"),
        (f"{LINES[0]}\ngroup g all W1 W1", "line 2: W1 is already a member of a group"),
        (f"{LINES[0]}\ngroup g all W1\ngroup h any g W1", "line 3: W1 is already a member"),
        (f"{LINES[0]}\ngroup W1 all W1", "line 2: the name W1 is already in use"),
        ("quorum\x0bnone", "line 1: control characters are not allowed"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(policy, reason):
    with pytest.raises(PolicyError, match=reason):
        parse_policy(policy)
