"""The customer's record on disk: written as a whole, and damage is named.

Canonical JSON of rows, compared with the library rfc8785 and with the examples of RFC 8785.
"""

import hashlib
import os
import struct
from datetime import UTC, datetime

import pytest
import rfc8785
from hypothesis import given, strategies as st

from tests.doubles.published_log import PublishedLog
from verifier.notes import LOG_KEY, Checkpoint, VerifierKey
from verifier.record import Record, RecordedRow, Run
from verifier.report import VerifyError
from verifier.served_rows import (
    COVERED,
    RowError,
    encode_canonical,
    format_number,
    hash_row,
    pick_covered,
)

pytestmark = pytest.mark.clause("verify")

NOW = datetime(2026, 7, 1, tzinfo=UTC)


def save(record: Record, log: PublishedLog, *numbers: int) -> None:
    rows = [
        RecordedRow(number, log.get_salt(number), pick_covered(log.rows[number]))
        for number in numbers
    ]
    checkpoint = Checkpoint.parse(log.checkpoint)
    run = Run(NOW, "live", checkpoint, has_start=True)
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
    runs = [(run.at, run.source, run.has_start) for run in record.load_runs()]
    assert runs == [(NOW, "live", True)] * 2
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
        *(
            ("rows.jsonl", f'{{"leaf":1,"salt":"","row":{row}}}\n', "line 1 is damaged")
            for row in ("{}", "[]", '{"id":"a"}', '{"id":"a","created_at":"soon"}')
        ),
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


ROW = {
    "id": "universe.BTC.enzo.1h.1767225600.1",
    "tier": "universe",
    "ticker": "BTC",
    "asset_class": "crypto",
    "indicator": "enzo",
    "indicator_name": "Enzo",
    "timeframe": "1h",
    "direction": "bullish",
    "transition": {"from": "neutral", "to": "bullish"},
    "change_type": "activation",
    "action": None,
    "price": 97000.0,
    "created_at": "2026-01-01T00:03:00.000Z",
}
# RFC 8785, appendix B: the bits of a double, and its text.
RFC_NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), RFC_NUMBERS)
def test_numbers_are_written_as_in_the_examples_of_the_standard(bits, text):
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert format_number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_written_as_by_the_library(value):
    assert format_number(value).encode() == rfc8785.dumps(value)


@given(
    st.fixed_dictionaries(
        {name: st.none() | st.text() for name in COVERED}
        | {
            "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "transition": st.none() | st.fixed_dictionaries({"to": st.text(), "from": st.text()}),
        }
    )
)
def test_rows_are_written_as_by_the_library(row):
    assert encode_canonical(row) == rfc8785.dumps(row)


def test_the_leaf_covers_the_salt_and_the_row_without_the_names_of_the_catalog():
    text = (
        b'{"action":null,"change_type":"activation","created_at":"2026-01-01T00:03:00.000Z",'
        b'"direction":"bullish","id":"universe.BTC.enzo.1h.1767225600.1","indicator":"enzo",'
        b'"price":97000,"ticker":"BTC","tier":"universe","timeframe":"1h",'
        b'"transition":{"from":"neutral","to":"bullish"}}'
    )
    salt = bytes(range(16))
    assert hash_row(ROW, salt) == hashlib.sha256(b"\x00" + salt + text).digest()


def test_a_row_that_lacks_a_member_is_refused_by_name():
    row = {name: value for name, value in ROW.items() if name != "price"}
    with pytest.raises(RowError, match="a row has no price"):
        pick_covered(row)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1], 10**400, b"x", "\ud800"])
def test_values_without_a_canonical_form_are_refused(value):
    with pytest.raises(RowError):
        hash_row(ROW | {"price": value}, b"")
