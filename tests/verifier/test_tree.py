"""Merkle trees as in RFC 6962, and tiles that the library tlog-scales wrote.

Notes, keys and checkpoints of other software, and policies.
"""

import base64
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tlog_scales.backend import LocalBackend
from tlog_scales.reader import TilesReader
from tlog_scales.signing import (
    Ed25519CosignatureVerifier,
    MLDSA44CosignatureSigner,
    PlainEd25519Signer,
    Vkey,
)
from tlog_scales.tlog import Checkpoint as OtherCheckpoint
from tlog_scales.writer import TilesWriter

from tests.doubles.published_log import LEAVES, ROOTS
from verifier.notes import (
    COSIGNER_KEY,
    LOG_KEY,
    Checkpoint,
    InclusionProof,
    NoteError,
    PolicyError,
    SignedNote,
    VerifierKey,
    parse_policy,
)
from verifier.tree import (
    EMPTY_ROOT,
    TileTree,
    TreeMismatchError,
    combine_peaks,
    format_tile_path,
    hash_complete_subtree,
    hash_leaf,
    is_included,
    list_peaks,
    split_tile,
)

pytestmark = pytest.mark.clause("verify")

# Leaf index, tree size, path.
PATHS = [
    (0, 1, []),
    (
        0,
        8,
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        5,
        8,
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (2, 3, ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
    (
        1,
        5,
        [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
]


def hash_entry(index: int) -> bytes:
    return hash_leaf(LEAVES[index])


def compute_root(size: int) -> bytes:
    leaves = [hash_entry(index) for index in range(size)]
    return combine_peaks(
        [
            hash_complete_subtree(leaves[index << level : (index + 1) << level])
            for level, index in list_peaks(size)
        ]
    )


@pytest.mark.parametrize("size", range(9))
def test_roots_are_those_of_the_reference_implementation(size):
    # That of an empty tree is the hash of nothing, as `sha256sum /dev/null` prints it.
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert EMPTY_ROOT.hex() == empty
    assert compute_root(size) == [EMPTY_ROOT, *ROOTS][size]


@pytest.mark.parametrize(("index", "size", "path"), PATHS)
def test_proofs_of_the_reference_implementation_verify_and_altered_ones_do_not(index, size, path):
    hashes = [bytes.fromhex(one) for one in path]
    root = ROOTS[size - 1]
    leaf = hash_entry(index)
    assert is_included(leaf, index, size, hashes, root)
    other = bytes(32)
    assert not is_included(other, index, size, hashes, root)
    assert not is_included(leaf, index, size, hashes, other)
    assert not is_included(leaf, index, size, [*hashes, other], root)
    assert not is_included(leaf, size, size, hashes, root)
    assert not is_included(leaf, -1, size, hashes, root)
    for place in range(len(hashes)):
        assert not is_included(leaf, index, size, hashes[:place] + hashes[place + 1 :], root)
        replaced = [*hashes[:place], other, *hashes[place + 1 :]]
        assert not is_included(leaf, index, size, replaced, root)


SIGNER = PlainEd25519Signer("example.com/log", bytes(range(32)))
SIZES = [1, 2, 7, 255, 256, 257, 511, 512, 700]
LARGE = 65_536 + 256 + 3


def make_entry(index: int) -> bytes:
    return index.to_bytes(4, "big")


def write_log(folder: Path, size: int) -> Path:
    writer = TilesWriter.create(folder / "log", "example.com/log")
    for index in range(size):
        writer.add_leaf(make_entry(index))
    writer.commit([SIGNER])
    return writer.root


def open_tree(folder: Path, read: list[str] | None = None) -> TileTree:
    """Open the tree of the checkpoint in a folder; `read` collects the paths of its tiles."""
    checkpoint = Checkpoint.parse((folder / "checkpoint").read_text())

    async def fetch_tile(level: int, number: int, width: int) -> list[bytes]:
        path = format_tile_path(level, number, width)
        (read if read is not None else []).append(path)
        return split_tile((folder / path).read_bytes())

    return TileTree(checkpoint.size, checkpoint.root, fetch_tile)


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        ((0, 0, 256), "tile/0/000"),
        ((1, 7, 5), "tile/1/007.p/5"),
        ((2, 1_234_067, 256), "tile/2/x001/x234/067"),
        ((0, 1000, 112), "tile/0/x001/000.p/112"),
    ],
)
def test_paths_of_tiles_are_those_of_the_specification(tile, path):
    assert format_tile_path(*tile) == path


@pytest.mark.parametrize("size", SIZES)
async def test_every_earlier_root_is_that_of_the_other_implementation(tmp_path, size):
    folder = write_log(tmp_path, size)
    tree = open_tree(folder)
    await tree.check_root()
    other = TilesReader(LocalBackend(folder))
    other.set_size(size)
    for earlier in {0, 1, size // 2, size - 1, size} | {256} & set(range(size)):
        assert await tree.compute_root(earlier) == other.mth(0, earlier)
    leaves = [hash_leaf(make_entry(index)) for index in range(size)]
    assert await tree.read_leaf_hashes(0, size) == leaves
    assert await tree.read_leaf_hashes(size // 3, size // 2) == leaves[size // 3 : size // 2]


@pytest.mark.prove
async def test_a_tree_of_three_levels_is_read_with_few_tiles(tmp_path):
    folder, read = write_log(tmp_path, LARGE), []
    tree = open_tree(folder, read)
    await tree.check_root()
    assert read == ["tile/0/257.p/3", "tile/1/001.p/1", "tile/2/000.p/1"]
    other = TilesReader(LocalBackend(folder))
    other.set_size(LARGE)
    for earlier in (1, 256, 65_535, 65_536, 65_537, LARGE - 1):
        assert await tree.compute_root(earlier) == other.mth(0, earlier)
    read.clear()
    assert await tree.read_leaf_hashes(65_000, 65_600) == [
        hash_leaf(make_entry(index)) for index in range(65_000, 65_600)
    ]
    # The tiles 255 and 256 were read for earlier roots.
    assert sorted(read) == ["tile/0/253", "tile/0/254"]


ALTERED = [
    *((path, "another root than the signed") for path in ("tile/0/257.p/3", "tile/1/001.p/1")),
    ("tile/2/000.p/1", "another root than the signed checkpoint"),
    *((path, f"{path} does not belong") for path in ("tile/0/003", "tile/1/000")),
]


@pytest.mark.parametrize(("path", "reason"), ALTERED)
@pytest.mark.prove
async def test_an_altered_tile_contradicts_the_root_at_the_edge_and_is_named_inside(
    tmp_path, path, reason
):
    folder = write_log(tmp_path, LARGE)
    content = (folder / path).read_bytes()
    (folder / path).write_bytes(bytes([content[0] ^ 1]) + content[1:])
    tree = open_tree(folder)

    async def read_a_leaf() -> None:
        await tree.check_root()
        await tree.read_leaf_hashes(256 * 3, 256 * 3 + 1)

    with pytest.raises(TreeMismatchError, match=reason):
        await read_a_leaf()


def make_proof(folder: Path, index: int, extra: str = "") -> str:
    checkpoint = (folder / "checkpoint").read_text()
    other = TilesReader(LocalBackend(folder))
    path = other.get_inclusion_proof(index, other.get_checkpoint().size).node_hashes
    lines = [base64.b64encode(one).decode() for one in path]
    return "\n".join(["c2sp.org/tlog-proof@v1", *extra.splitlines(), f"index {index}", *lines]) + (
        f"\n\n{checkpoint}"
    )


@pytest.mark.parametrize("size", SIZES)
def test_proofs_of_the_other_implementation_verify(tmp_path, size):
    folder = write_log(tmp_path, size)
    for index in {0, size // 2, size - 1}:
        proof = InclusionProof.parse(make_proof(folder, index, "extra AAEC"))
        assert (proof.index, proof.salt, proof.checkpoint.size) == (index, b"\x00\x01\x02", size)
        assert proof.includes(hash_leaf(make_entry(index)))
        assert not proof.includes(hash_leaf(make_entry(index + 1)))
    assert InclusionProof.parse(make_proof(folder, 0)).salt == b""


EXAMPLE_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
EXAMPLE_NOTE = (
    "This is an example message.\n\n"
    "— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXm"
    "RKuwHjG1Yu72IneyaQM=\n"
)
KEY = VerifierKey.parse(EXAMPLE_KEY, LOG_KEY)


def make_checkpoint(origin: str = "example.com/log") -> str:
    return OtherCheckpoint.make_signed(origin, 7, bytes(32), [SIGNER]).serialize()


MADE_PROOF = f"c2sp.org/tlog-proof@v1\nextra AAEC\nindex 3\n\n{make_checkpoint()}"


def test_the_example_of_the_specification_verifies_unless_its_text_is_changed():
    assert SignedNote.parse(EXAMPLE_NOTE).is_signed_by(KEY)
    assert str(KEY) == EXAMPLE_KEY
    assert not SignedNote.parse(EXAMPLE_NOTE.replace("example m", "other m")).is_signed_by(KEY)


def test_signatures_of_unknown_keys_are_ignored_and_a_bad_one_of_the_key_is_not():
    unknown = "— example.com/bar " + base64.b64encode(bytes(68)).decode() + "\n"
    bad = "— example.com/foo " + base64.b64encode(KEY.key_id + bytes(64)).decode() + "\n"
    assert SignedNote.parse(EXAMPLE_NOTE + unknown).is_signed_by(KEY)
    assert not SignedNote.parse(EXAMPLE_NOTE + bad).is_signed_by(KEY)
    assert not SignedNote.parse("text\n\n" + unknown).is_signed_by(KEY)


MALFORMED_NOTES = [
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
]
MALFORMED_KEYS = [
    ("example.com/foo", "not a verifier key"),
    ("+530d903a+Aeky", "not a verifier key"),
    ("a b+530d903a+Aeky", "not a verifier key"),
    ("a" * 256 + "+530d903a+Aeky", "not a verifier key"),
    (EXAMPLE_KEY.replace("530d903a", "530d903b"), "has the id 530d903a, not 530d903b"),
    (EXAMPLE_KEY[:-4], "does not have 32 bytes"),
    (EXAMPLE_KEY.replace("+AekyeR", "+A*kyeR"), "not base64"),
    (EXAMPLE_KEY.replace("+Ae", "+Be"), "signature type 05"),
]
# What is replaced in the checkpoint of another implementation.
MALFORMED_CHECKPOINTS = [
    ("\n7\n", "\n07\n", "'07' is not a number"),
    ("\n7\n", "\n-7\n", "'-7' is not a number"),
    ("\n7\n", "\n" + "9" * 30 + "\n", "is not a number"),
    ("\n7\n", "\n\n", "a checkpoint needs"),
    ("A" * 43 + "=", "AAAA", "is not a SHA-256 hash"),
    ("A" * 43 + "=", "?", "'\\?' is not base64"),
    ("\n7\n" + "A" * 43 + "=", "", "a checkpoint needs"),
    ("example.com/log\n7", "x" * 256 + "\n7", "a checkpoint needs"),
]
# Likewise in the proof of leaf 3.
MALFORMED_PROOFS = [
    ("tlog-proof@v1", "tlog-proof@v2", "the first line of a proof is"),
    ("index 3\n", "", "no index line"),
    ("index 3", "index 03", "'03' is not a number"),
    ("index 3\n", "index 3\n?\n", "'\\?' is not base64"),
    ("extra AAEC", "extra A", "'A' is not base64"),
    ("example.com/log\n", "", "a checkpoint needs"),
]


def parse_log_key(text: str) -> VerifierKey:
    return VerifierKey.parse(text, LOG_KEY)


@pytest.mark.parametrize(
    ("parse", "text", "reason"),
    [
        *((SignedNote.parse, *note) for note in MALFORMED_NOTES),
        *((parse_log_key, *key) for key in MALFORMED_KEYS),
        (
            lambda text: VerifierKey.parse(text, COSIGNER_KEY),
            *(EXAMPLE_KEY, "signature type 01, but 04 is needed here"),
        ),
        *(
            (Checkpoint.parse, make_checkpoint().replace(old, new), reason)
            for old, new, reason in MALFORMED_CHECKPOINTS
        ),
        *(
            (InclusionProof.parse, MADE_PROOF.replace(old, new, 1), reason)
            for old, new, reason in MALFORMED_PROOFS
        ),
    ],
)
def test_a_malformed_text_is_refused_with_the_reason(parse, text, reason):
    with pytest.raises(NoteError, match=reason):
        parse(text)


def test_a_checkpoint_of_another_implementation_verifies_under_its_own_origin():
    key = VerifierKey.parse(SIGNER.vkey.serialize(), LOG_KEY)
    checkpoint = Checkpoint.parse(make_checkpoint())
    assert (checkpoint.origin, checkpoint.size, checkpoint.root) == (key.name, 7, bytes(32))
    assert checkpoint.is_signed_by(key)
    assert checkpoint.source == make_checkpoint()
    foreign = Checkpoint.parse(make_checkpoint("example.com/other"))
    assert foreign.note.is_signed_by(key)
    assert not foreign.is_signed_by(key)


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


def test_another_implementation_accepts_the_same_cosignature():
    checkpoint = OtherCheckpoint.from_text(cosign(1).source)
    Ed25519CosignatureVerifier(WITNESSES[0].vkey).verify_note(checkpoint.signatures[1], checkpoint)
    policy = parse_policy(EXAMPLE)
    assert policy.list_cosigners(cosign(1), None) == ["W1"]
    assert [str(key) for key in policy.logs] == [LOG.vkey.serialize()]


def test_a_post_quantum_cosignature_of_another_implementation_counts():
    signer = MLDSA44CosignatureSigner("witness.example/pq", bytes(range(32)))
    policy = parse_policy(f"witness PQ {signer.vkey.serialize()}\nquorum PQ")
    line = f"{signer.sign(SIGNED).serialize()}\n"
    cosigned = Checkpoint.parse(SIGNED.serialize() + line)
    assert policy.is_met_by(policy.list_cosigners(cosigned, None))
    grown = OtherCheckpoint.make_signed(LOG.vkey.name, 8, bytes(32), [LOG])
    assert policy.list_cosigners(Checkpoint.parse(grown.serialize() + line), None) == []


@pytest.mark.parametrize(
    ("policy", "cosigners", "expected"),
    [
        (EXAMPLE, (), False),
        (EXAMPLE, (1, 2, 3), False),
        (EXAMPLE, (1, 4), False),
        (EXAMPLE, (1, 3, 4), True),
        (EXAMPLE, (1, 2, 3, 4), True),
        (EXAMPLE, (4, 4, 4), False),
        (f"{LINES[0]}\nquorum W1", (1,), True),
        (f"{LINES[0]}\nquorum W1", (2,), False),
        (f"{LINES[0]}\n{LINES[1]}\ngroup g any W1 W2\nquorum g", (2,), True),
        ("quorum none", (), True),
    ],
)
def test_a_quorum_is_a_witness_a_group_of_witnesses_and_groups_or_none(policy, cosigners, expected):
    parsed = parse_policy(policy)
    assert parsed.is_met_by(parsed.list_cosigners(cosign(*cosigners), None)) is expected


def test_a_cosignature_of_another_time_or_text_does_not_count():
    name, content = WITNESSES[0].cosign(SIGNED.serialize_body(), 1_700_000_001)[:-1].rsplit(" ", 1)
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
