"""The customer's record on disk: written as a whole, and damage is named."""

import os
from datetime import UTC, datetime

import pytest

from tests.doubles.published_log import PublishedLog, make_row
from verifier.notes import LOG_KEY, Checkpoint, VerifierKey
from verifier.record import Record, RecordedRow, Run
from verifier.report import VerifyError
from verifier.rows import pick_covered

pytestmark = pytest.mark.clause("verify")

NOW = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture
def log(tmp_path):
    log = PublishedLog(tmp_path / "trees")
    log.publish(*map(make_row, range(4)))
    return log


def save(record: Record, log: PublishedLog, *numbers: int) -> None:
    rows = [
        RecordedRow(number, log.get_salt(number), pick_covered(log.rows[number]))
        for number in numbers
    ]
    checkpoint = Checkpoint.parse(log.checkpoint)
    run = Run(NOW, "live", checkpoint)
    record.save(VerifierKey.parse(log.vkey, LOG_KEY), checkpoint, {(0, 0): [b"t" * 32] * 4}, run)
    record.append_rows(rows)


def test_a_record_is_read_as_it_was_saved(log, tmp_path):
    record = Record(tmp_path / "a" / "b")
    assert (record.load_key(), record.load_checkpoint(), record.load_rows()) == (None, None, {})
    save(record, log, 0, 1)
    save(record, log, 3)
    assert str(record.load_key()) == log.vkey
    assert record.load_checkpoint().source == log.checkpoint
    rows = record.load_rows()
    assert [one.leaf for one in rows.values()] == [0, 1, 3]
    assert [(run.at, run.source) for run in record.load_runs()] == [(NOW, "live")] * 2
    assert rows[log.rows[3]["id"]].row == pick_covered(log.rows[3])
    assert sorted(path.name for path in record.folder.iterdir()) == [
        "checkpoint",
        "rows.jsonl",
        "runs.jsonl",
        "tile",
        "vkey",
    ]


def test_a_line_that_was_not_finished_is_written_again(log, tmp_path):
    record = Record(tmp_path / "state")
    save(record, log, 0, 1)
    file = record.folder / "rows.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    assert [one.leaf for one in record.load_rows().values()] == [0]
    save(record, log, 1, 2)
    assert [one.leaf for one in record.load_rows().values()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("vkey", "me", "vkey: 'me' is not a verifier key"),
        ("vkey", b"\xff", "vkey cannot be read"),
        ("checkpoint", "me", "vkey: it is missing"),
        ("rows.jsonl", "{}\n", "rows.jsonl: line 1 is damaged: remove it"),
        ("rows.jsonl", '{"leaf":1,"salt":"?","row":{}}\n', "line 1 is damaged"),
        ("runs.jsonl", '{"at":"soon"}\n', "runs.jsonl: line 1: remove it"),
        (
            "runs.jsonl",
            '{"at":"2026-01-01T00:00:00.000Z","source":"live","note":1}\n',
            "runs.jsonl: line 1: remove it",
        ),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, reason):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    record = Record(tmp_path)
    load = {
        **{"vkey": record.load_key, "checkpoint": record.load_checkpoint},
        "runs.jsonl": record.load_runs,
    }
    with pytest.raises(VerifyError, match=reason):
        load.get(name, record.load_rows)()


def test_a_folder_that_cannot_be_written_is_named(log, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(VerifyError, match="file/state cannot be written"):
        save(Record(tmp_path / "file" / "state"), log, 0)


def test_only_the_customer_can_read_a_new_folder(log, tmp_path):
    record = Record(tmp_path / "state")
    save(record, log, 0)
    assert os.stat(record.folder).st_mode & 0o077 == 0
