"""Signed notes, the key file, and the log that it signs."""

import json
import resource
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs
from tlog_scales import signing, tlog

from compute.signing.log_signer import (
    KeyFileError,
    LogKey,
    LogSigner,
    build_vkey,
    load_key,
    move_key,
    name_next_origin,
    save_key,
    sign_checkpoint,
)
from store.log_tree import EMPTY_ROOT
from store.market_rows import CheckpointRow
from store.sql.market_store import MarketStore
from tests.store.sql.test_transparency_log import commit_rows, forget_log
from tests.support.store_homes import HomeFactory, StoreHome, open_and_close

pytestmark = pytest.mark.clause("proof")

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
CHECKPOINT = "signals.example/api/v1/log", 70_000, sha256(b"root").digest()


def test_another_implementation_reads_a_signed_checkpoint() -> None:
    note, vkey = sign_checkpoint(*CHECKPOINT, KEY), build_vkey(CHECKPOINT[0], KEY)
    read = tlog.Checkpoint.from_text(note)
    assert (read.origin, read.size, read.root_hash) == CHECKPOINT
    read.verify(signing.Vkey.from_string(str(vkey)))
    same = signing.PlainEd25519Signer(CHECKPOINT[0], KEY)
    assert note == tlog.Checkpoint.make_signed(*CHECKPOINT, [same]).serialize()


ORIGIN = "signals.example/api/v1/log"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "key.json"


def test_a_key_is_read_by_its_owner_alone_as_it_was_written(path: Path) -> None:
    assert load_key(path) is None
    key = LogKey.create(ORIGIN)
    assert (key.size, key.root) == (0, EMPTY_ROOT)
    assert key.seed != LogKey.create(ORIGIN).seed
    assert repr(key.seed) not in repr(key)
    # A killed process left this.
    path.with_name("key.json.unfinished").write_text("half")
    for written in (key, key.with_tree(7, bytes(range(32)))):
        save_key(path, written)
        assert load_key(path) == written
        assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()).keys() == {"origin", "key", "size", "root"}
    assert [each.name for each in path.parent.iterdir()] == ["key.json"]


@pytest.mark.parametrize(
    "changed",
    [
        "",
        "[]",
        "null",
        '{"origin": "a"}',
        {"key": "AAAA"},
        {"key": "*"},
        {"size": "many"},
        {"root": ""},
        {"origin": None},
    ],
)
def test_a_damaged_file_is_named_without_its_content(
    path: Path, changed: str | dict[str, object]
) -> None:
    save_key(path, LogKey.create(ORIGIN))
    fields = json.loads(path.read_text())
    secret = fields["key"]
    text = changed if isinstance(changed, str) else json.dumps(fields | changed)
    path.write_text(text)
    with pytest.raises(KeyFileError) as caught:
        load_key(path)
    assert str(caught.value) == f"{path} is not a key file of the log"
    assert secret not in repr(caught.value.__cause__)


def test_a_folder_that_is_missing_is_named(path: Path) -> None:
    lost = path.parent / "lost" / "key.json"
    with pytest.raises(KeyFileError, match="cannot write the key file"):
        save_key(lost, LogKey.create(ORIGIN))
    path.mkdir()
    with pytest.raises(KeyFileError, match="cannot read the key file"):
        load_key(path)


def test_a_moved_key_is_no_longer_where_it_was(path: Path) -> None:
    target = path.with_name("target.json")
    assert not move_key(path, target)
    key = LogKey.create(ORIGIN)
    save_key(path, key)
    assert not move_key(path, path)
    # A process was killed before it renamed the first file.
    save_key(target, key)
    assert move_key(path, target)
    assert (load_key(path), load_key(target)) == (None, key)
    save_key(path, LogKey.create(ORIGIN))
    with pytest.raises(KeyFileError, match="is the key file of another log"):
        move_key(path, target)
    assert load_key(target) == key


NOW = datetime(2026, 11, 26, 20, 3, tzinfo=UTC)


@dataclass
class Signing:
    """A store with the signer of its log, and what that reported."""

    market: MarketStore
    path: Path
    now: int = 1_780_000_000_000
    outcomes: list[str] = field(default_factory=list)

    @property
    def signer(self) -> LogSigner:
        return LogSigner(
            self.market.feed_log, self.path, ORIGIN, lambda: self.now, self.outcomes.append
        )

    async def sign(self, rows: int, first: int) -> CheckpointRow:
        await commit_rows(self.market, rows, first)
        await self.signer.sign()
        return await self.market.feed_log.checkpoint()


@pytest.fixture
async def signing_one(home: StoreHome, tmp_path: Path) -> AsyncIterator[Signing]:
    async with open_and_close(home.open_market()) as market:
        yield Signing(market, tmp_path / "key.json")


def read(checkpoint: CheckpointRow) -> tlog.Checkpoint:
    """Return a checkpoint whose signature another implementation has verified."""
    assert checkpoint.note is not None
    assert checkpoint.vkey is not None
    found = tlog.Checkpoint.from_text(checkpoint.note)
    found.verify(signing.Vkey.from_string(checkpoint.vkey))
    return found


async def test_each_tree_is_signed_and_its_root_kept_apart(signing_one: Signing) -> None:
    log = signing_one.market.feed_log
    for rows, first, size in ((5, 0, 5), (300, 10, 246), (300, 400, 487)):
        checkpoint = await signing_one.sign(rows, first)
        signed = read(checkpoint)
        assert (signed.origin, signed.size) == (ORIGIN, checkpoint.size) == (ORIGIN, size)
        assert signed.root_hash == (await log.head()).root
        key = load_key(signing_one.path)
        assert key is not None
        assert (key.size, key.root) == (size, signed.root_hash)
    assert signing_one.outcomes == ["signed"] * 3


def read_signed_time(checkpoint: CheckpointRow) -> int:
    """Return the time (epoch s) that the key of the log has cosigned."""
    assert checkpoint.note is not None
    assert checkpoint.vkey is not None
    parsed = tlog.Checkpoint.from_text(checkpoint.note)
    vkey = signing.Vkey.from_string(checkpoint.vkey)
    cosigner = signing.Vkey(vkey.name, None, 4, vkey.pubkey)
    ((_, signature),) = signing.VkeySet(cosigner).verify(parsed.signatures, parsed)
    return int.from_bytes(signature.payload[:8])


async def test_a_tree_without_new_rows_is_signed_with_a_later_time_and_keeps_cosignatures(
    signing_one: Signing,
) -> None:
    first = await signing_one.sign(5, 0)
    assert read_signed_time(first) == 1_780_000_000
    # As witnesses add them.
    await signing_one.market.feed_log.add_cosignatures(first, ["— witness AAAAAAAA\n"])
    signing_one.now += 3_600_000
    await signing_one.signer.sign()
    again = await signing_one.market.feed_log.checkpoint()
    assert read_signed_time(again) == 1_780_003_600
    assert read(again).root_hash == read(first).root_hash
    assert again.note is not None
    assert again.note.count("\n— witness AAAAAAAA\n") == 1
    grown = await signing_one.sign(5, 10)
    assert grown.note is not None
    assert "witness" not in grown.note


async def test_the_key_is_created_for_an_empty_feed_and_signs_it(signing_one: Signing) -> None:
    await signing_one.signer.sign()
    assert load_key(signing_one.path) is not None
    signed = read(await signing_one.market.feed_log.checkpoint())
    assert (signed.size, signed.root_hash) == (0, EMPTY_ROOT)


async def test_a_process_that_died_before_storing_its_checkpoint_stores_it_next_time(
    signing_one: Signing,
) -> None:
    await signing_one.sign(5, 0)
    expected = await signing_one.sign(5, 10)
    # As after a kill between the two writes: the file is ahead.
    other = Signing(signing_one.market, signing_one.path)
    await other.market.feed_log.save_checkpoint(expected._replace(note="old\n", vkey="old"))
    await other.signer.sign()
    assert await other.market.feed_log.checkpoint() == expected


@pytest.mark.clause("21.7")
async def test_an_older_copy_of_the_store_is_not_signed(
    signing_one: Signing, new_home: HomeFactory
) -> None:
    await signing_one.sign(300, 0)
    async with new_home() as home, open_and_close(home.open_market()) as market:
        restored = Signing(market, signing_one.path)
        await commit_rows(market, 20)
        await assert_refused(
            restored,
            "the store has fewer leaves than the 241 that were signed: an older copy of it was "
            "restored",
        )
        # It grows again, with other rows.
        await commit_rows(market, 400, 100)
        await assert_refused(restored, "the first 241 leaves are not those that were signed")
        assert restored.outcomes == ["refused"] * 4
    # The copy that has all rows is signed on.
    assert read(await signing_one.sign(5, 900)).size == 246


async def assert_refused(signing_one: Signing, reason: str) -> None:
    """Assert that signing is refused, and logged once."""
    before = signing_one.path.read_bytes()
    stored = await signing_one.market.feed_log.checkpoint()
    with capture_logs() as logs:
        await signing_one.signer.sign()
        await signing_one.signer.sign()
    assert [(line["event"], line["reason"]) for line in logs] == [("log_not_signed", reason)]
    assert await signing_one.market.feed_log.checkpoint() == stored._replace(refusal=reason)
    assert signing_one.path.read_bytes() == before


async def test_a_log_that_was_built_anew_is_not_signed(
    signing_one: Signing, home: StoreHome
) -> None:
    await signing_one.sign(20, 0)
    await forget_log(home)
    await commit_rows(signing_one.market, 20, 100)
    await assert_refused(signing_one, "the first 17 leaves are not those that were signed")


async def test_a_missing_key_file_is_not_replaced_in_silence(signing_one: Signing) -> None:
    checkpoint = await signing_one.sign(20, 0)
    away = signing_one.path.rename(signing_one.path.with_name("away"))
    await commit_rows(signing_one.market, 20, 100)
    with capture_logs() as logs:
        await signing_one.signer.sign()
    assert [line["reason"] for line in logs] == ["the key file of the log is missing"]
    assert not signing_one.path.exists()
    stored = await signing_one.market.feed_log.checkpoint()
    assert stored == checkpoint._replace(refusal="the key file of the log is missing")
    away.rename(signing_one.path)
    after = await signing_one.sign(5, 200)
    assert (read(after).size, after.refusal, after.vkey) == (39, None, checkpoint.vkey)


def break_file(path: Path) -> None:
    path.write_text("{}")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [break_file, replace_by_folder])
async def test_an_unusable_key_file_is_refused_without_its_path_in_public(
    signing_one: Signing, spoil: Callable[[Path], None]
) -> None:
    await signing_one.sign(20, 0)
    spoil(signing_one.path)
    with capture_logs() as logs:
        await signing_one.signer.sign()
    assert str(signing_one.path) in logs[0]["cause"]
    refusal = (await signing_one.market.feed_log.checkpoint()).refusal
    assert refusal == "the key file of the log cannot be used"


async def test_damaged_tiles_are_not_signed(signing_one: Signing, home: StoreHome) -> None:
    await signing_one.sign(300, 0)
    await overwrite_tile(home, 1)
    await commit_rows(signing_one.market, 300, 400)
    with capture_logs() as logs:
        await signing_one.signer.sign()
    assert logs[-1]["reason"] == "the first 241 leaves are not those that were signed"


async def test_tiles_that_contradict_each_other_are_not_signed(
    signing_one: Signing, home: StoreHome
) -> None:
    await signing_one.sign(400, 0)
    # The tile of level 1 is new: its hash is not that of the signed rows.
    await commit_rows(signing_one.market, 400, 500)
    await overwrite_tile(home, 1, level=1)
    with capture_logs() as logs:
        await signing_one.signer.sign()
    assert logs[-1]["event"] == "log_not_signed"
    assert (await signing_one.market.feed_log.checkpoint()).size == 321


async def overwrite_tile(home: StoreHome, byte: int, level: int = 0) -> None:
    """Replace the first hash of the first tile of a level, past the triggers."""
    async with home.open_plain() as run:
        ((hashes,),) = await run(
            "SELECT hashes FROM log_tiles WHERE level = ? AND number = 0", level
        )
        changed = bytes([byte]) * 32 + bytes(hashes)[32:]
        update = "UPDATE log_tiles SET hashes = ? WHERE level = ? AND number = 0"
        if "postgresql" in home.address:
            await run("ALTER TABLE log_tiles DISABLE TRIGGER USER")
            await run(update, changed, level)
            await run("ALTER TABLE log_tiles ENABLE ALWAYS TRIGGER same")
            return
        ((trigger,),) = await run("SELECT sql FROM sqlite_schema WHERE name = 'log_tiles_update'")
        await run("DROP TRIGGER log_tiles_update")
        await run(update, changed, level)
        await run(trigger)


async def test_a_restart_archives_the_key_and_signs_the_same_rows_with_another(
    signing_one: Signing,
) -> None:
    before = await signing_one.sign(20, 0)
    vkey, archive = await signing_one.signer.restart(NOW)
    assert archive == signing_one.path.with_name("key.json.20261126T200300Z")
    assert json.loads(archive.read_text())["origin"] == ORIGIN
    after = await signing_one.market.feed_log.checkpoint()
    assert (after.vkey, vkey.name) == (str(vkey), f"{ORIGIN}/2")
    assert after.vkey != before.vkey
    signed = read(after)
    assert (signed.origin, signed.root_hash) == (f"{ORIGIN}/2", read(before).root_hash)
    vkey, _ = await signing_one.signer.restart(NOW.replace(hour=21))
    assert vkey.name == f"{ORIGIN}/3"


async def test_a_restart_ends_a_refusal(signing_one: Signing, new_home: HomeFactory) -> None:
    await signing_one.sign(300, 0)
    async with new_home() as home, open_and_close(home.open_market()) as market:
        restored = Signing(market, signing_one.path)
        with capture_logs():
            await restored.sign(20, 0)
        await restored.signer.restart(NOW)
        checkpoint = await restored.sign(20, 100)
        assert (read(checkpoint).size, checkpoint.refusal) == (34, None)


async def test_a_restart_without_a_key_file_continues_the_names(signing_one: Signing) -> None:
    await signing_one.sign(20, 0)
    signing_one.path.unlink()
    vkey, archive = await signing_one.signer.restart(NOW)
    assert (vkey.name, archive) == (f"{ORIGIN}/2", None)


def test_origins_of_later_logs_are_numbered() -> None:
    assert name_next_origin("a.example/api/v1/log") == "a.example/api/v1/log/2"
    assert name_next_origin("a.example/api/v1/log/9") == "a.example/api/v1/log/10"


def test_a_key_file_that_is_written_in_part_replaces_none(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    key = LogKey.create(ORIGIN)
    save_key(path, key)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # From here on, the kernel writes the first bytes of a longer content, and says how many.
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size - 20, limits[1]))
    try:
        with pytest.raises(KeyFileError, match="cannot write the key file"):
            save_key(path, key.with_tree(7, bytes(32)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (load_key(path), list(tmp_path.iterdir())) == (key, [path])
