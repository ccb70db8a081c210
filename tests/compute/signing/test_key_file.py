"""The key file is private, complete or absent, and never shown."""

import json
from pathlib import Path

import pytest

from compute.signing.log_signer import (
    KeyFileError,
    LogKey,
    archive_key,
    load_key,
    move_key,
    save_key,
)
from store.log_tree import EMPTY_ROOT

pytestmark = pytest.mark.clause("proof")

ORIGIN = "signals.example/api/v1/log"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "key.json"


def test_a_key_is_read_as_it_was_written(path: Path) -> None:
    assert load_key(path) is None
    key = LogKey.create(ORIGIN)
    assert (key.size, key.root) == (0, EMPTY_ROOT)
    for written in (key, key.with_tree(7, bytes(range(32)))):
        save_key(path, written)
        assert load_key(path) == written
    assert json.loads(path.read_text()).keys() == {"origin", "key", "size", "root"}
    assert [each.name for each in path.parent.iterdir()] == ["key.json"]


def test_only_the_owner_may_read_it_also_once_it_is_replaced(path: Path) -> None:
    for size in (0, 5):
        save_key(path, LogKey.create(ORIGIN).with_tree(size, bytes(32)))
        assert path.stat().st_mode & 0o777 == 0o600


def test_two_keys_differ_and_neither_is_shown() -> None:
    one, other = LogKey.create(ORIGIN), LogKey.create(ORIGIN)
    assert one.seed != other.seed
    assert repr(one.seed) not in repr(one)


def test_what_a_killed_process_left_is_overwritten(path: Path) -> None:
    path.with_name("key.json.unfinished").write_text("half")
    save_key(path, LogKey.create(ORIGIN))
    assert load_key(path) is not None


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


def test_an_archived_key_keeps_its_content(path: Path) -> None:
    archive = path.with_name("old.json")
    assert not archive_key(path, archive)
    key = LogKey.create(ORIGIN)
    save_key(path, key)
    assert archive_key(path, archive)
    assert (load_key(path), load_key(archive)) == (None, key)
