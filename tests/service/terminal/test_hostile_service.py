"""A hostile service gets one line of refusal, and never writes to the terminal what it likes."""

import csv
import io
import json
from typing import Any

import pytest

from tests.doubles.fixed_answers import KEY, loopback
from tests.service.commands.test_cli import only_line
from tests.support.signals_command import run_signals

pytestmark = pytest.mark.clause("22.8")

BEFORE, AT = "2026-09-30T12:03:00.000Z", "2026-09-30T12:03:00.001Z"
ROW: dict[str, Any] = {
    **{"id": "universe.BTC.enzo.1h.1", "tier": "universe", "ticker": "BTC", "timeframe": "1h"},
    **{"asset_class": "crypto", "indicator": "enzo", "direction": "bullish", "created_at": AT},
    **{"transition": None, "change_type": None, "action": "LONG", "price": 1.5},
}
META: dict[str, Any] = {
    **{"source": "recorded", "simulated": False, "stale": False, "as_of": AT},
    **{"nothing_new_before": None, "next_update": {"1h": None}},
}
NASTY = "\x1b]0;owned\x07\x9b2J\u202e\r\n\x7f"
ESCAPED = r"\u001b]0;owned\u0007\u009b2J\u202e\r\n\u007f"


def make_page(row: object = ROW, **members: object) -> bytes:
    """Return a page of a feed whose recording has ended, with some members changed."""
    pagination = {"has_more": False, "next_cursor": AT}
    page = {"signals": [row], "meta": META, "pagination": pagination, **members}
    return json.dumps(page).encode()


def ask(folder, body: bytes, *arguments: str):
    with loopback(200, body) as (address, _):
        return run_signals(folder, *arguments, "--url", address, api_key=KEY)


MALFORMED = {
    "nested deeply": b'{"signals":' + b"[" * 100_000,
    "nested below the parser's limit": make_page(note=json.loads("[" * 100 + "]" * 100)),
    "half a character": make_page(ROW | {"ticker": "\ud800"}),
    "UTF-16": make_page().decode().encode("utf-16"),
    "a time that is a word": make_page(ROW | {"created_at": "yesterday"}),
    "a year of five digits": make_page(ROW | {"created_at": "99999-01-01T00:00:00.000Z"}),
    "a month that is none": make_page(ROW | {"created_at": "2026-99-01T00:00:00.000Z"}),
    "no time": make_page(ROW | {"created_at": None}),
    "a time of two lines": make_page(ROW | {"created_at": f"{AT}\n"}),
    "a row that is none": make_page(7),
    "rows that are none": make_page(signals=7),
    "meta that is none": make_page(meta=[]),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_answer_is_one_line(tmp_path, body: bytes):
    for arguments in (("feed",), ("feed", "--follow", "--since", BEFORE)):
        done = ask(tmp_path, body, *arguments)
        lines = done.stderr.splitlines()
        assert done.returncode == 1
        assert lines[-1].startswith("signals: http://127.0.0.1:")
        assert [line for line in lines[:-1] if "following the rows" not in line] == []


@pytest.mark.parametrize(
    "change", [{"ticker": []}, {"price": "x"}, {"price": 10**400}, {"transition": {}}]
)
def test_a_value_of_another_type_is_one_line(tmp_path, change):
    done = ask(tmp_path, make_page(ROW | change), "feed")
    assert done.returncode == 1
    assert only_line(done.stderr).endswith("read it with --json, or upgrade")


def test_a_place_that_is_no_time_is_not_saved(tmp_path):
    page = make_page(pagination={"has_more": False, "next_cursor": "yesterday"})
    done = ask(tmp_path, page, "feed", "--follow", "--cursor", "cursor")
    assert done.returncode == 1
    assert only_line(done.stderr).endswith("read it with --json, or upgrade")
    assert not (tmp_path / "cursor").exists()


def test_a_huge_flag_takes_no_memory(tmp_path):
    body = {"groups": [], "capped": 10**12, "query": {}, "as_of": AT, "meta": META}
    done = ask(tmp_path, json.dumps(body).encode(), "flips")
    assert done.returncode == 0
    assert "choose fewer --hours" in done.stdout


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_no_text_of_a_service_controls_the_terminal(tmp_path, form: str, follows: bool):
    arguments = ["feed", *(() if form == "table" else (f"--{form}",))]
    arguments += ("--follow", "--since", BEFORE) if follows else ()
    page = json.loads(make_page(ROW | {"ticker": NASTY}))
    # Raw, as a service may send everything that JSON does not forbid.
    done = ask(tmp_path, json.dumps(page, ensure_ascii=False, indent=1).encode(), *arguments)
    assert done.returncode == 0
    assert done.stdout.replace("\n", "").replace("\r", "").isprintable()
    assert ESCAPED in done.stdout
    if form == "json":
        shown = json.loads(done.stdout)
        assert (shown if follows else shown["signals"][0])["ticker"] == NASTY
    if form == "csv":
        _, record = csv.reader(io.StringIO(done.stdout))
        assert record[2] == ESCAPED


def test_an_id_that_is_no_header_is_not_posted(tmp_path):
    done = run_following(tmp_path, ROW | {"id": "a\r\nb"}, "--post", "http://127.0.0.1:9/")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("read it with --json, or upgrade")


def run_following(folder, row: dict[str, Any], *arguments: str):
    with loopback(200, make_page(row)) as (address, _):
        return run_signals(
            folder,
            *("feed", "--follow", "--since", BEFORE, "--url", address, *arguments),
            api_key=KEY,
            webhook_secret="whsec_" + "A" * 32,
        )


def test_rows_that_come_again_are_not_followed(tmp_path):
    pagination = {"has_more": True, "next_cursor": AT}
    done = ask(tmp_path, make_page(pagination=pagination), "feed", "--follow", "--since", BEFORE)
    assert done.returncode == 1
    assert done.stdout.count(" BTC ") == 1
    assert done.stderr.endswith(f"sent a row of {AT} after one of {AT}\n")
