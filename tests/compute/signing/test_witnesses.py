"""The witness policy, and the cosignatures that witnesses give."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tlog_scales.signing import Vkey as IndependentVkey, VkeySet
from tlog_scales.tlog import Checkpoint

from compute.signing.log_signer import LogKey, LogSigner, save_key
from compute.signing.witnesses import (
    RETRY_DELAYS_S,
    PolicyError,
    Witness,
    Witnesses,
    load_witnesses,
)
from store.market_rows import CheckpointRow
from store.sql.market_store import MarketStore
from tests.doubles.witness import WitnessDouble, open_witness
from tests.store.sql.test_transparency_log import commit_rows
from tests.support.signals_command import drop_requests
from tests.support.store_homes import StoreHome, open_and_close
from verifier.notes import VerifierKey

LOG = VerifierKey.build("signals.example/api/v1/log", 1, bytes(32))
ONE, TWO = (VerifierKey.build(f"w{n}.example", 4, bytes([n]) * 32) for n in (1, 2))
POST_QUANTUM = VerifierKey.build("w3.example", 6, bytes(1312))
POLICY = f"""
# Witnesses of the log.
log {LOG}

witness one {ONE} https://w1.example/sub/
\twitness two\t{TWO} http://127.0.0.1:9000
witness three {POST_QUANTUM} https://w3.example
witness offline {VerifierKey.build("w4.example", 4, bytes([4]) * 32)}
group both 2 one two
quorum both
"""


def load(tmp_path: Path, text: str) -> list[Witness]:
    path = tmp_path / "policy.txt"
    path.write_text(text)
    return load_witnesses(path)


@pytest.mark.clause("proof")
def test_the_witnesses_with_an_address_are_read(tmp_path: Path) -> None:
    assert load(tmp_path, POLICY) == [
        Witness("one", ONE, "https://w1.example/sub"),
        Witness("two", TWO, "http://127.0.0.1:9000"),
        Witness("three", POST_QUANTUM, "https://w3.example"),
    ]


@pytest.mark.clause("proof")
@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("witnesses a b", "line 1: 'witnesses' is none of log, witness, group, quorum"),
        ("witness a", "line 1: a witness line does not have 1 items"),
        (
            "witness a b https://w.example",
            "line 1: 'b' is not a verifier key",
        ),
        (
            f"witness a {LOG} https://w.example",
            "has signature type 01, but 04 or 06 is",
        ),
        (f"witness a {ONE} w.example\nquorum a", "witness a: expected an http(s):// address"),
        (
            f"witness a {ONE} https://w.example?a\nquorum a",
            "witness a: expected an http(s):// address",
        ),
        (f"witness a {ONE} https://w.example:x/\nquorum a", "expected an http(s):// address"),
        (f"witness a {ONE} https://[w.example/\nquorum a", "expected an http(s):// address"),
        (f"witness a {ONE}\nwitness b {ONE}", "line 2: the key of w1.example occurs twice"),
        (f"witness a {ONE}\nquorum a", "no witness has an address"),
        (
            "quorum none",
            "no witness has an address; expected lines such as witness NAME VKEY https://",
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, line: str, fault: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(tmp_path, line)
    assert fault in str(caught.value)
    assert str(tmp_path / "policy.txt") in str(caught.value)


@pytest.mark.clause("proof")
def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot read the witness policy"):
        load_witnesses(tmp_path / "lost.txt")


KEY = LogKey.create("signals.example/api/v1/log")
LOG_VKEY = str(KEY.vkey)
DEADLINE_S = 20


@dataclass
class Cosigning:
    """A signed store whose witnesses are asked; pauses end when the test says so."""

    market: MarketStore
    path: Path
    doubles: list[WitnessDouble]
    cosigned: int = 0
    now: int = 1_780_000_000
    pauses: list[float] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        listed = [
            Witness(f"W{n}", VerifierKey.parse(double.vkey.serialize(), 4, 6), double.url)
            for n, double in enumerate(self.doubles)
        ]
        log = self.market.feed_log
        self.witnesses = Witnesses(log, listed, self._on_cosigned, self._pause)
        self.signer = LogSigner(
            log, self.path, KEY.origin, lambda: self.now * 1000, submit=self.witnesses.submit
        )

    def _on_cosigned(self) -> None:
        self.cosigned += 1
        self.changed.set()

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.changed.set()
        await self.resumed.wait()
        self.resumed.clear()

    async def sign(self, rows: int, first: int) -> None:
        await commit_rows(self.market, rows, first)
        await self.signer.sign()

    async def wait_until(self, is_done: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_done():
                self.changed.clear()
                await self.changed.wait()

    async def read(self) -> tuple[CheckpointRow, set[str]]:
        """Return the stored checkpoint, and the names of those who signed it."""
        row = await self.market.feed_log.checkpoint()
        assert row.note is not None
        checkpoint = Checkpoint.from_text(row.note)
        log_key = IndependentVkey.from_string(LOG_VKEY)
        timed = IndependentVkey(log_key.name, None, 4, log_key.pubkey)
        keys = [log_key, timed, *(each.vkey for each in self.doubles)]
        valid = VkeySet(*keys).verify(checkpoint.signatures, checkpoint)
        assert len(valid) == len(checkpoint.signatures)
        return row, {vkey.name for vkey, _ in valid}


@asynccontextmanager
async def open_cosigning(
    home: StoreHome, tmp_path: Path, *doubles: WitnessDouble
) -> AsyncIterator[Cosigning]:
    path = tmp_path / "key.json"
    save_key(path, KEY)
    async with open_and_close(home.open_market()) as market:
        opened = Cosigning(market, path, [*doubles])
        try:
            yield opened
        finally:
            await opened.witnesses.close()


@pytest.fixture
async def witness() -> AsyncIterator[WitnessDouble]:
    async with open_witness(LOG_VKEY) as opened:
        yield opened


@pytest.mark.clause("proof", "21.15")
@pytest.mark.usefixtures("use_single_ca")
async def test_each_checkpoint_is_cosigned_with_the_proof_from_the_one_before(
    home: StoreHome, tmp_path: Path, witness: WitnessDouble
) -> None:
    async with open_cosigning(home, tmp_path, witness) as opened:
        for number, (rows, first, size) in enumerate(((5, 0, 5), (300, 10, 246), (300, 400, 487))):
            await opened.sign(rows, first)
            await opened.wait_until(lambda number=number: opened.cosigned == number + 1)
            row, names = await opened.read()
            assert (row.size, witness.size) == (size, size)
            assert names == {KEY.origin, witness.name}
    assert witness.old_sizes == [0, 5, 246]


@pytest.mark.clause("proof", "21.15")
@pytest.mark.usefixtures("use_single_ca")
async def test_post_quantum_cosignatures_are_verified_too(home: StoreHome, tmp_path: Path) -> None:
    async with (
        open_witness(LOG_VKEY, is_ml_dsa=True) as witness,
        open_cosigning(home, tmp_path, witness) as opened,
    ):
        await opened.sign(5, 0)
        await opened.wait_until(lambda: opened.cosigned == 1)
        assert (await opened.read())[1] == {KEY.origin, witness.name}


@pytest.mark.clause("proof", "21.15")
@pytest.mark.usefixtures("use_single_ca")
async def test_a_restarted_process_learns_the_size_that_a_witness_knows(
    home: StoreHome, tmp_path: Path, witness: WitnessDouble
) -> None:
    async with open_cosigning(home, tmp_path, witness) as opened:
        await opened.sign(5, 0)
        await opened.wait_until(lambda: opened.cosigned == 1)
    async with open_cosigning(home, tmp_path, witness) as opened:
        await opened.sign(300, 10)
        await opened.wait_until(lambda: opened.cosigned == 1)
        assert (await opened.read())[1] == {KEY.origin, witness.name}
    assert witness.old_sizes == [0, 0, 5]


@pytest.mark.clause("proof", "21.15")
@pytest.mark.usefixtures("use_single_ca")
async def test_a_restarted_process_asks_for_cosignatures_that_are_missing(
    home: StoreHome, tmp_path: Path, witness: WitnessDouble
) -> None:
    async with open_cosigning(home, tmp_path) as alone:
        await alone.sign(5, 0)
    async with open_cosigning(home, tmp_path, witness) as opened:
        await opened.signer.sign()
        await opened.wait_until(lambda: opened.cosigned == 1)
        # What is cosigned is not asked for again, in this process or the next one.
        await opened.signer.sign()
    async with open_cosigning(home, tmp_path, witness) as again:
        await again.signer.sign()
    assert witness.old_sizes == [0]


@pytest.mark.clause("proof", "21.15")
@pytest.mark.usefixtures("use_single_ca")
async def test_the_cosignature_of_a_tree_that_does_not_grow_is_renewed_within_a_day(
    home: StoreHome, tmp_path: Path, witness: WitnessDouble
) -> None:
    async with open_cosigning(home, tmp_path, witness) as opened:
        await opened.sign(5, 0)
        await opened.wait_until(lambda: opened.cosigned == 1)
        for hours, asked in ((5, 1), (7, 2)):
            opened.now = 1_780_000_000 + hours * 3600
            witness.time = opened.now
            await opened.signer.sign()
            await opened.wait_until(lambda asked=asked: opened.cosigned == asked)
        row, names = await opened.read()
        assert names == {KEY.origin, witness.name}
        assert row.note is not None
        assert row.note.count(f"— {witness.name} ") == 1
    assert witness.old_sizes == [0, 5]


@pytest.mark.clause("proof", "21.15")
@pytest.mark.usefixtures("use_single_ca")
async def test_a_witness_that_fails_is_asked_again_and_the_others_are_not(
    home: StoreHome, tmp_path: Path, witness: WitnessDouble
) -> None:
    witness.failures = [500] * 6
    async with (
        open_witness(LOG_VKEY, name="witness.example/w2") as other,
        open_cosigning(home, tmp_path, witness, other) as opened,
    ):
        with capture_logs(processors=[drop_requests]) as logs:
            await opened.sign(5, 0)
            for pauses in range(1, 7):
                await opened.wait_until(lambda pauses=pauses: len(opened.pauses) == pauses)
                assert (await opened.read())[1] == {KEY.origin, other.name}
                opened.resumed.set()
            await opened.wait_until(lambda: opened.cosigned == 2)
        assert (await opened.read())[1] == {KEY.origin, witness.name, other.name}
        assert opened.pauses == [*RETRY_DELAYS_S, RETRY_DELAYS_S[-1]]
        failed = [line for line in logs if line["event"] == "witness_failed"]
        assert [(line["witness"], line["reason"]) for line in failed] == [("W0", "status 500")]
        assert other.old_sizes == [0]


@pytest.mark.clause("proof", "21.15")
@pytest.mark.usefixtures("use_single_ca")
async def test_a_new_checkpoint_takes_the_place_of_one_that_waits(
    home: StoreHome, tmp_path: Path, witness: WitnessDouble
) -> None:
    witness.failures = [500]
    async with open_cosigning(home, tmp_path, witness) as opened:
        await opened.sign(5, 0)
        await opened.wait_until(lambda: len(opened.pauses) == 1)
        await opened.sign(5, 10)
        await opened.wait_until(lambda: opened.cosigned == 1)
        row, names = await opened.read()
        assert (row.size, witness.size, names) == (10, 10, {KEY.origin, witness.name})


@pytest.mark.clause("proof", "21.15")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda witness: witness.answers.append(""), "its response has no valid cosignature"),
        (
            lambda witness: witness.answers.append("— witness.example/w1 AAAA\n"),
            "its response has no valid cosignature",
        ),
        (lambda witness: witness.answers.append("x" * 70_000), "its response is too long"),
        (lambda witness: setattr(witness, "time", 0), "its response has no valid cosignature"),
        (lambda witness: witness.log_vkeys.clear(), "status 404"),
        (
            lambda witness: setattr(witness, "size", 900),
            "it has cosigned 900 rows, more than the 5 of this checkpoint",
        ),
    ],
    ids=["empty", "invalid", "long", "no time", "unknown log", "ahead"],
)
async def test_a_cosignature_that_is_not_valid_is_never_stored(
    home: StoreHome,
    tmp_path: Path,
    witness: WitnessDouble,
    spoil: Callable[[WitnessDouble], None],
    reason: str,
) -> None:
    spoil(witness)
    async with open_cosigning(home, tmp_path, witness) as opened:
        with capture_logs(processors=[drop_requests]) as logs:
            await opened.sign(5, 0)
            await opened.wait_until(lambda: len(opened.pauses) == 1)
        assert [line["reason"] for line in logs if line["event"] == "witness_failed"] == [reason]
        assert (await opened.read())[1] == {KEY.origin}


@pytest.mark.clause("proof", "21.15")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize(
    ("url", "said"),
    [("", {"reason": "ConnectError"}), ("http://ü..b", {"failure": "InvalidURL"})],
)
async def test_a_witness_that_cannot_be_reached_is_named_without_its_address(
    home: StoreHome, tmp_path: Path, url: str, said: dict[str, str]
) -> None:
    async with open_witness(LOG_VKEY) as gone:
        gone.url = url or gone.url
    async with open_cosigning(home, tmp_path, gone) as opened:
        with capture_logs() as logs:
            await opened.sign(5, 0)
            await opened.wait_until(lambda: len(opened.pauses) == 1)
        (line,) = [line for line in logs if line["event"] == "witness_failed"]
        assert line.items() >= ({"witness": "W0"} | said).items()
        assert "ü" not in str(line)


@pytest.mark.clause("proof", "21.15")
@pytest.mark.usefixtures("use_single_ca")
async def test_cosignatures_of_a_checkpoint_that_was_replaced_are_dropped(
    home: StoreHome, tmp_path: Path
) -> None:
    async with open_cosigning(home, tmp_path) as opened:
        await opened.sign(5, 0)
        older = await opened.market.feed_log.checkpoint()
        await opened.sign(5, 10)
        newer = await opened.market.feed_log.checkpoint()
        log = opened.market.feed_log
        await log.add_cosignatures(older, ["— witness AAAA\n"])
        assert await log.checkpoint() == newer
        # One that comes while the same tree is signed again is kept.
        await log.add_cosignatures(newer, ["— witness AAAA\n"])
        assert await log.save_checkpoint(newer) == await log.checkpoint() != newer
