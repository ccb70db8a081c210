"""Rows reach the program or the address of the user, signed; a hostile service reaches neither."""

import base64
import csv
import io
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook
from starlette.responses import Response

from schemas.errors import OperatorError
from service.terminal import deliveries
from service.terminal.commands import TransientError
from service.terminal.deliveries import (
    BodyTemplate,
    RefusalError,
    WebhookSender,
    parse_post_url,
    parse_webhook_secret,
    run_program,
    sign,
)
from tests.doubles.fixed_answers import KEY, answering, loopback
from tests.service.commands.test_cli import only_line
from tests.support.signals_command import run_signals
from verifier.client import MAX_ANSWER_BYTES

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@pytest.mark.clause("22.4", "22.7")
def test_a_signature_is_the_one_of_the_reference_library():
    body = '{"ticker":"BRK.B","price":1.5,"name":"Ω"}'
    headers = sign(parse_webhook_secret(SECRET), "universe:BTC", 1_790_769_600, body.encode())
    at = datetime.fromtimestamp(1_790_769_600, UTC)
    assert headers == {
        "webhook-id": "universe:BTC",
        "webhook-timestamp": "1790769600",
        "webhook-signature": Webhook(SECRET).sign("universe:BTC", at, body),
    }


@pytest.mark.clause("22.4", "22.7")
@pytest.mark.parametrize(
    "secret",
    [
        "",
        SECRET.removeprefix("whsec_"),
        "whsec_",
        "whsec_not base64",
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
    ],
)
def test_an_invalid_secret_is_refused_without_repeating_it(secret):
    with pytest.raises(OperatorError, match="whsec_ followed by 24 to 64 bytes") as refused:
        parse_webhook_secret(secret)
    assert secret.removeprefix("whsec_") == "" or secret not in str(refused.value)


@pytest.mark.clause("22.4", "22.7")
@pytest.mark.parametrize("size", [24, 64])
def test_the_shortest_and_the_longest_secret_are_accepted(size):
    key = bytes(range(size))
    assert parse_webhook_secret(f" whsec_{base64.b64encode(key).decode()}\n") == key


ROW = {
    **{"id": "universe.BRK.B.enzo.1h.5.0", "tier": "universe", "ticker": "BRK.B"},
    **{"price": 1.5, "created_at": "2026-09-30T12:03:00.001Z"},
}
META = {"source": "simulated", "simulated": True, "stale": False, "note": "Not handed on."}
EVENT = {**ROW, "meta": {"source": "simulated", "simulated": True, "stale": False}}


@pytest.mark.clause("22.4", "22.7")
async def test_a_program_gets_the_row_as_one_line_of_json(tmp_path):
    await run_program(f"cat >> {tmp_path}/rows", [ROW], META)
    text = (tmp_path / "rows").read_text()
    assert text.count("\n") == 1
    assert json.loads(text) == EVENT


@pytest.mark.clause("22.4", "22.7")
async def test_a_program_does_not_have_to_read_the_row(tmp_path):
    row = {**ROW, "indicator_name": "x" * 1_000_000}
    await run_program(f"exec touch {tmp_path}/ran", [row], META)
    assert (tmp_path / "ran").exists()


@pytest.mark.clause("22.4", "22.7")
async def test_a_failed_program_is_run_again():
    with pytest.raises(TransientError, match="the program failed with status 3"):
        await run_program("exit 3", [ROW], META)


@pytest.mark.clause("22.4", "22.7")
async def test_a_program_that_does_not_exist_ends_the_command():
    with pytest.raises(OperatorError, match="status 127"):
        await run_program("/nowhere/program 2> /dev/null", [ROW], META)


def open_sender(url: str, *times: int) -> WebhookSender:
    clock = iter(times)
    return WebhookSender(f"{url}/hook", parse_webhook_secret(SECRET), lambda: next(clock))


@pytest.mark.clause("22.4", "22.7")
async def test_each_attempt_has_the_same_id_and_a_signature_of_its_own():
    now = time.time_ns() // 1_000_000
    async with answering(Response(status_code=503), Response(status_code=204)) as (url, received):
        send = open_sender(url, now - 9000, now)
        with pytest.raises(TransientError):
            await send([ROW], META)
        await send([ROW], META)
    for headers, body in received:
        assert Webhook(SECRET).verify(body, headers) == {
            "type": "signal.universe",
            "timestamp": ROW["created_at"],
            "data": EVENT,
        }
    ids = [headers["webhook-id"] for headers, _ in received]
    assert ids == ["universe:BRK:B:enzo:1h:5:0"] * 2
    times = [int(headers["webhook-timestamp"]) for headers, _ in received]
    assert times[1] - times[0] == 9


@pytest.mark.clause("22.4", "22.7")
@pytest.mark.parametrize("status", [302, 408, 425, 429, 500])
async def test_an_answer_without_success_is_tried_again(status):
    refusal = Response(status_code=status, headers={"Retry-After": "7", "Location": "/other"})
    async with answering(refusal) as (url, received):
        with pytest.raises(TransientError, match=f"answered {status}") as failed:
            await open_sender(url, 0)([ROW], META)
    assert failed.value.retry_after_s == 7
    assert len(received) == 1


@pytest.mark.clause("22.4", "22.7")
async def test_an_address_that_does_not_answer_is_named_without_its_path():
    with pytest.raises(TransientError, match=r"^127\.0\.0\.1:1 did not answer \(ConnectError\)$"):
        await open_sender("http://127.0.0.1:1/secret", 0)([ROW], META)


@pytest.mark.clause("22.7")
@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_refusal_has_the_words_of_the_receiver_without_its_secret(status):
    words = Response(f"no\nhook {status} /services/T0/s3cret%2Fpath/\x1b[2J", status)
    async with answering(words) as (url, received):
        with pytest.raises(RefusalError) as refused:
            await open_sender(f"{url}/services/T0/s3cret%2Fpath", 0)([ROW], META)
    said = f"no hook {status} /(hidden)/T0/(hidden)/\\u001b[2J"
    assert str(refused.value) == f"{url.removeprefix('http://')} answered {status}: {said}"
    assert len(received) == 1


@pytest.mark.clause("22.7")
async def test_a_refusal_counts_whatever_its_body():
    too_large, packed = b"x" * (MAX_ANSWER_BYTES + 1), {"Content-Encoding": "br"}
    async with answering(Response(too_large, 400), Response("no", 400, packed)) as (url, received):
        for _ in range(2):
            with pytest.raises(RefusalError, match=r"answered 400: $"):
                await open_sender(url, 0)([ROW], META)
    assert len(received) == 2


@pytest.mark.clause("22.12")
def test_without_proc_it_warns_of_an_address_and_needs_none_to_hide_nothing(monkeypatch, capsys):
    monkeypatch.setattr(deliveries, "Path", lambda path: Path("/nowhere"))
    deliveries.hide_argument("")
    deliveries.hide_argument("ntfys://h/t")
    assert "SIGNALS_NOTIFY_URL instead" in only_line(capsys.readouterr().err)


TEMPLATE = """{
  {# What Slack and PagerDuty take. #}
  "text": "{{ data.ticker }} {{ data.direction }}{% if data.price %} {{ data.price }}{% endif %}",
  "dedup_key": "{{ data.id }}", "simulated": {{ data.meta.simulated }}, "row": {{ data|tojson }}
}"""


@pytest.mark.clause("22.4")
async def test_a_template_makes_the_body_that_is_signed(tmp_path):
    (tmp_path / "body.json").write_text(TEMPLATE)
    row = {**ROW, "ticker": NASTY + '"}', "direction": "bullish"}
    now = time.time_ns() // 1_000_000
    async with answering(Response()) as (url, received):
        sender = WebhookSender(
            *(url, parse_webhook_secret(SECRET), lambda: now, None),
            BodyTemplate(tmp_path / "body.json"),
        )
        await sender([row], META)
    [(headers, body)] = received
    assert Webhook(SECRET).verify(body, headers) == {
        "text": f'{NASTY}"}} bullish 1.5',
        "dedup_key": ROW["id"],
        "simulated": True,
        "row": {**row, "meta": EVENT["meta"]},
    }


@pytest.mark.clause("22.4")
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ('{"text": "{{ data.tickr }}"}', "has no attribute 'tickr'"),
        ('{"text": {{ data.ticker }}}', "Expecting value"),
        ('{"a": 1,\n"text": "{{ data.ticker }"}', "line 2: unexpected '}'"),
        (None, "No such file"),
    ],
)
def test_a_wrong_template_is_one_line_at_the_start(tmp_path, template, reason):
    if template is not None:
        (tmp_path / "body").write_text(template)
    with loopback(200, make_page()) as (address, _):
        done = run_signals(
            *(tmp_path, "feed", "--follow", "--cursor", "c", "--url", address),
            *("--post", "http://127.0.0.1:1/", "--body", "body"),
            api_key=KEY,
            webhook_secret=SECRET,
        )
    assert done.returncode == 1
    assert only_line(done.stderr).startswith("signals: --body body does not give a JSON body: ")
    assert reason in done.stderr


@pytest.mark.clause("22.4", "22.7")
async def test_an_address_that_is_gone_ends_the_command():
    async with answering(Response(status_code=410)) as (url, _):
        with pytest.raises(OperatorError, match="410"):
            await open_sender(url, 0)([ROW], META)


@pytest.mark.clause("22.4", "22.7")
@pytest.mark.parametrize("url", ["example.com", "ftp://h/", "http://", "https://me:secret@h/"])
def test_an_invalid_address_is_refused_without_repeating_it(url):
    with pytest.raises(OperatorError, match="--post must be") as refused:
        parse_post_url(url)
    assert "secret" not in str(refused.value)


BEFORE, AT = "2026-09-30T12:03:00.000Z", "2026-09-30T12:03:00.001Z"
SERVED_ROW: dict[str, Any] = {
    **{"id": "universe.BTC.enzo.1h.1", "tier": "universe", "ticker": "BTC", "timeframe": "1h"},
    **{"asset_class": "crypto", "indicator": "enzo", "direction": "bullish", "created_at": AT},
    **{"transition": None, "change_type": None, "action": "LONG", "price": 1.5},
}
SERVED_META: dict[str, Any] = {
    **{"source": "recorded", "simulated": False, "stale": False, "as_of": AT},
    **{"nothing_new_before": None, "next_update": {"1h": None}},
}
NASTY = "\x1b]0;owned\x07\x9b2J\u202e\r\n\x7f"
ESCAPED = r"\u001b]0;owned\u0007\u009b2J\u202e\r\n\u007f"


def make_page(row: object = SERVED_ROW, **members: object) -> bytes:
    """Return a page of a feed whose recording has ended, with some members changed."""
    pagination = {"has_more": False, "next_cursor": AT}
    page = {"signals": [row], "meta": SERVED_META, "pagination": pagination, **members}
    return json.dumps(page).encode()


def ask(folder, body: bytes, *arguments: str):
    with loopback(200, body) as (address, _):
        return run_signals(folder, *arguments, "--url", address, api_key=KEY)


MALFORMED = {
    "nested deeply": b'{"signals":' + b"[" * 100_000,
    "nested below the parser's limit": make_page(note=json.loads("[" * 100 + "]" * 100)),
    "half a character": make_page(SERVED_ROW | {"ticker": "\ud800"}),
    "UTF-16": make_page().decode().encode("utf-16"),
    "a time that is a word": make_page(SERVED_ROW | {"created_at": "yesterday"}),
    "a year of five digits": make_page(SERVED_ROW | {"created_at": "99999-01-01T00:00:00.000Z"}),
    "a month that is none": make_page(SERVED_ROW | {"created_at": "2026-99-01T00:00:00.000Z"}),
    "no time": make_page(SERVED_ROW | {"created_at": None}),
    "a time of two lines": make_page(SERVED_ROW | {"created_at": f"{AT}\n"}),
    "a row that is none": make_page(7),
    "rows that are none": make_page(signals=7),
    "meta that is none": make_page(meta=[]),
}


@pytest.mark.clause("22.8")
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_answer_is_one_line(tmp_path, body: bytes):
    for arguments in (("feed",), ("feed", "--follow", "--since", BEFORE)):
        done = ask(tmp_path, body, *arguments)
        lines = done.stderr.splitlines()
        assert done.returncode == 1
        assert lines[-1].startswith("signals: http://127.0.0.1:")
        assert [line for line in lines[:-1] if "following the rows" not in line] == []


@pytest.mark.clause("22.8")
@pytest.mark.parametrize(
    "change", [{"ticker": []}, {"price": "x"}, {"price": 10**400}, {"transition": {}}]
)
def test_a_value_of_another_type_is_one_line(tmp_path, change):
    done = ask(tmp_path, make_page(SERVED_ROW | change), "feed")
    assert done.returncode == 1
    assert only_line(done.stderr).endswith("read it with --json, or upgrade")


@pytest.mark.clause("22.8")
def test_a_place_that_is_no_time_is_not_saved(tmp_path):
    page = make_page(pagination={"has_more": False, "next_cursor": "yesterday"})
    done = ask(tmp_path, page, "feed", "--follow", "--cursor", "cursor")
    assert done.returncode == 1
    assert only_line(done.stderr).endswith("read it with --json, or upgrade")
    assert not (tmp_path / "cursor").exists()


@pytest.mark.clause("22.8")
def test_a_huge_flag_takes_no_memory(tmp_path):
    body = {"groups": [], "capped": 10**12, "query": {}, "as_of": AT, "meta": SERVED_META}
    done = ask(tmp_path, json.dumps(body).encode(), "flips")
    assert done.returncode == 0
    assert "choose fewer --hours" in done.stdout


@pytest.mark.clause("22.8")
@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_no_text_of_a_service_controls_the_terminal(tmp_path, form: str, follows: bool):
    arguments = ["feed", *(() if form == "table" else (f"--{form}",))]
    arguments += ("--follow", "--since", BEFORE) if follows else ()
    page = json.loads(make_page(SERVED_ROW | {"ticker": NASTY}))
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


@pytest.mark.clause("22.8")
def test_an_id_that_is_no_header_is_not_posted(tmp_path):
    done = run_following(tmp_path, SERVED_ROW | {"id": "a\r\nb"}, "--post", "http://127.0.0.1:9/")
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


@pytest.mark.clause("22.8")
def test_rows_that_come_again_are_not_followed(tmp_path):
    pagination = {"has_more": True, "next_cursor": AT}
    done = ask(tmp_path, make_page(pagination=pagination), "feed", "--follow", "--since", BEFORE)
    assert done.returncode == 1
    assert done.stdout.count(" BTC ") == 1
    assert done.stderr.endswith(f"sent a row of {AT} after one of {AT}\n")
