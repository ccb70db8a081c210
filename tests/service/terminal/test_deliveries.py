"""Rows reach a program, an address or people: signed, as messages, and refused ones are parked.

A hostile service reaches none of them.
"""

import asyncio
import base64
import csv
import io
import json
import logging
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from apprise.plugins.discord import NotifyDiscord
from apprise.plugins.slack import NotifySlack
from apprise.plugins.telegram import NotifyTelegram
from standardwebhooks.webhooks import Webhook
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from schemas.errors import OperatorError
from schemas.vocabulary import Timeframe, format_instant
from service.terminal import deliveries
from service.terminal.commands import TransientError
from service.terminal.deliveries import (
    BodyTemplate,
    Messenger,
    RefusalError,
    WebhookSender,
    parse_post_url,
    parse_webhook_secret,
    run_program,
)
from store.market_rows import ChangeRow
from tests.doubles.fixed_answers import KEY, answering, loopback
from tests.service.commands.test_cli import only_line, refused
from tests.service.terminal.test_follow import (
    BEGINNING,
    LATER,
    Receiver,
    follow,
    read_rows,
    run_follow,
)
from tests.support.example_market import HOUR_MS, make_batch, make_change, make_flips
from tests.support.running_service import RunningService, open_loopback_socket, run_app
from tests.support.signals_command import COMMAND, ENDS_WITHIN_S, build_environment, run_signals
from verifier.client import MAX_ANSWER_BYTES, Json

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


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
    assert (text.count("\n"), json.loads(text)) == (1, EVENT)


@pytest.mark.clause("22.4", "22.7")
async def test_a_program_does_not_have_to_read_the_row(tmp_path):
    row = {**ROW, "indicator_name": "x" * 1_000_000}
    await run_program(f"exec touch {tmp_path}/ran", [row], META)
    assert (tmp_path / "ran").exists()


@pytest.mark.clause("22.4", "22.7")
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("command", "error", "reason"),
    [
        ("exit 3", TransientError, "the program failed with status 3"),
        ("/nowhere/program 2> /dev/null", OperatorError, "status 127"),
    ],
)
async def test_a_failed_program_is_run_again_unless_it_does_not_exist(command, error, reason):
    with pytest.raises(error, match=reason):
        await run_program(command, [ROW], META)


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
    assert [headers["webhook-id"] for headers, _ in received] == ["universe:BRK:B:enzo:1h:5:0"] * 2
    times = [int(headers["webhook-timestamp"]) for headers, _ in received]
    assert times[1] - times[0] == 9


@pytest.mark.clause("22.4", "22.7")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("status", [302, 408, 425, 429, 500, 410])
async def test_an_answer_without_success_is_tried_again_unless_the_address_is_gone(status):
    refusal = Response(status_code=status, headers={"Retry-After": "7", "Location": "/other"})
    error = OperatorError if status == 410 else TransientError
    async with answering(refusal) as (url, received):
        with pytest.raises(error, match=f"answered {status}") as failed:
            await open_sender(url, 0)([ROW], META)
    assert (getattr(failed.value, "retry_after_s", 7), len(received)) == (7, 1)


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
        line = refused(
            *(tmp_path, "feed", "--follow", "--cursor", "c", "--url", address),
            *("--post", "http://127.0.0.1:1/", "--body", "body"),
            api_key=KEY,
            webhook_secret=SECRET,
        )
    assert line.startswith("signals: --body body does not give a JSON body: ")
    assert reason in line


@pytest.mark.clause("22.4", "22.7")
@pytest.mark.parametrize(
    "url",
    [
        *("example.com", "ftp://h/", "http://", "https://me:secret@h/"),
        *("http://[h/secret", "http://h:secret/", "http://h:99999/secret", "http://ü..b/secret"),
    ],
)
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
        return run_signals(folder, *arguments, "--url", address, api_key=KEY, webhook_secret=SECRET)


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
    ("page", "command"),
    [
        *(
            (make_page(SERVED_ROW | change), "feed")
            for change in ({"ticker": []}, {"price": "x"}, {"price": 10**400}, {"transition": {}})
        ),
        # A place that is no time is not saved, and an id that is no header is not posted.
        (
            make_page(pagination={"has_more": False, "next_cursor": "yesterday"}),
            "feed --follow --cursor cursor",
        ),
        (
            make_page(SERVED_ROW | {"id": "a\r\nb"}),
            f"feed --follow --since {BEFORE} --post http://127.0.0.1:9/",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_one_line(tmp_path, page, command):
    done = ask(tmp_path, page, *command.split())
    assert (done.returncode, (tmp_path / "cursor").exists()) == (1, False)
    assert done.stderr.splitlines()[-1].endswith("read it with --json, or upgrade")


@pytest.mark.clause("22.8")
def test_a_huge_flag_takes_no_memory(tmp_path):
    body = {"groups": [], "capped": 10**12, "query": {}, "as_of": AT, "meta": SERVED_META}
    done = ask(tmp_path, json.dumps(body).encode(), "flips")
    assert (done.returncode, "choose fewer --hours" in done.stdout) == (0, True)


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
def test_rows_that_come_again_are_not_followed(tmp_path):
    pagination = {"has_more": True, "next_cursor": AT}
    done = ask(tmp_path, make_page(pagination=pagination), "feed", "--follow", "--since", BEFORE)
    assert (done.returncode, done.stdout.count(" BTC ")) == (1, 1)
    assert done.stderr.endswith(f"sent a row of {AT} after one of {AT}\n")


TOKEN = "s3cretTokenOf-Receiver_" + "x" * 40
MESSAGE_ROW = {**SERVED_ROW, "transition": {"from": "neutral", "to": "bullish"}, "action": None}
LINE = "BTC 1h enzo: neutral > bullish, price 1.5, 2026-09-30 12:03 UTC"


@dataclass
class Messengers:
    """The services of messages, on one port: as their documentation describes them.

    They keep the path and the text of each message that they accept. The first requests get the
    `planned` answers, or what a call returns that is planned instead.
    """

    planned: list[Response | Callable[[], Response]] = field(default_factory=list)
    received: list[tuple[str, str]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        sent = json.loads(await request.body())
        answer = self.planned.pop(0) if self.planned else self._answer(request.url.path, sent)
        answer = answer if isinstance(answer, Response) else answer()
        await answer(scope, receive, send)

    def _answer(self, path: str, sent: Json) -> Response:
        if path.startswith("/discord/"):
            text, limit, accepted = sent["content"], 2000, Response(status_code=204)
        elif path.startswith("/slack/"):
            [attachment] = sent["attachments"]
            text, limit = f"{attachment['title']}\n{attachment['text']}", 40_000
            accepted = PlainTextResponse("ok")
        elif path.startswith("/telegram"):
            text, limit = sent["text"], 4096
            accepted = JSONResponse({"ok": True, "result": {"message_id": 1}})
        else:
            path = f"/ntfy/{sent['topic']}" if "topic" in sent else path
            text = f"{sent['title']}\n{sent['message']}"
            # It turns a longer one into an attachment.
            limit, accepted = sys.maxsize, JSONResponse({"id": "a", "event": "message"})
        if len(text) > limit:
            return JSONResponse({"error": "too long"}, 400)
        self.received.append((path, text.replace("\r\n", "\n")))
        return accepted


@asynccontextmanager
async def messengers(*planned: Response) -> AsyncIterator[tuple[str, Messengers]]:
    """Run the doubles; yield their host and port. Apprise calls them until the block ends."""
    doubles = Messengers([*planned])
    with open_loopback_socket() as bound, pytest.MonkeyPatch.context() as patch:
        host = f"127.0.0.1:{bound.getsockname()[1]}"
        # Apprise reads these hosts from no address.
        patch.setattr(NotifyDiscord, "notify_url", f"http://{host}/discord")
        patch.setattr(NotifySlack, "webhook_url", f"http://{host}/slack")
        patch.setattr(NotifyTelegram, "notify_url", f"http://{host}/telegram")
        async with run_app(doubles, bound):
            yield host, doubles


SLACK_TOKEN, CHAT = "A" * 24, "123456789"
# The address in Apprise, and the path and the title that the service gets.
RECEIVERS = {
    "discord": (f"discord://{CHAT}/{TOKEN}", f"/discord/{CHAT}/{TOKEN}", "SIMULATED signals"),
    "slack": (
        f"slack://TAAAAAAAA/BBBBBBBBB/{SLACK_TOKEN}",
        f"/slack/TAAAAAAAA/BBBBBBBBB/{SLACK_TOKEN}",
        "SIMULATED signals",
    ),
    "telegram": (
        f"tgram://{CHAT}:{'T' * 35}/42",
        f"/telegram{CHAT}:{'T' * 35}/sendMessage",
        "<b>SIMULATED signals</b>",
    ),
    "ntfy": (f"ntfy://HOST/{TOKEN}", f"/ntfy/{TOKEN}", "SIMULATED signals"),
}


@pytest.mark.clause("22.10")
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("address", "path", "title"), RECEIVERS.values(), ids=RECEIVERS)
async def test_a_row_is_a_message_of_one_line(address: str, path: str, title: str):
    async with messengers() as (host, doubles):
        await Messenger(address.replace("HOST", host))([MESSAGE_ROW], META)
    shown = LINE.replace(">", "&gt;") if "slack" in path or "telegram" in path else LINE
    assert doubles.received == [(path, f"{title}\n{shown}")]


@pytest.mark.clause("22.10")
@pytest.mark.parametrize(("address", "path", "title"), RECEIVERS.values(), ids=RECEIVERS)
async def test_rows_of_a_run_are_a_line_each_in_messages_that_are_short_enough(
    address: str, path: str, title: str
):
    rows = [{**MESSAGE_ROW, "ticker": f"A{number}"} for number in range(120)]
    async with messengers() as (host, doubles):
        await Messenger(address.replace("HOST", host))(rows, META)
    text = "\n".join(text for _, text in doubles.received)
    assert [line.split()[0] for line in text.splitlines() if line.startswith("A")] == [
        row["ticker"] for row in rows
    ]


REFUSALS = [
    ("discord", '{"message": "Unknown Webhook", "code": 10015}', 404),
    ("slack", "invalid_token", 403),
    ("slack", "no_text", 200),
    ("telegram", '{"ok":false,"description":"Forbidden: bot was blocked by the user"}', 403),
    ("ntfy", '{"code":40301,"http":403,"error":"forbidden"}', 403),
]


@pytest.mark.clause("22.10")
@pytest.mark.clause("22.12")
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "words", "status"), REFUSALS)
async def test_a_refusal_has_the_words_of_the_receiver_and_no_secret(
    name: str, words: str, status: int, capfd: pytest.CaptureFixture[str]
):
    address, path, _ = RECEIVERS[name]
    # What a log would get.
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    async with messengers(Response(f"{words} {path}", status)) as (host, _):
        with pytest.raises(RefusalError) as refused:
            await Messenger(address.replace("HOST", host))([MESSAGE_ROW], META)
    logging.getLogger().removeHandler(handler)
    said = str(refused.value)
    assert f" answered {status}: " in said
    assert words in said
    secrets = [part for part in path.split("/") if len(part) > 20]
    printed = said + "".join(capfd.readouterr())
    assert [one for one in secrets if one.removeprefix("telegram") in printed] == []


@pytest.mark.clause("22.10")
@pytest.mark.parametrize("status", [302, 408, 425, 429, 500, 503])
async def test_an_answer_that_may_pass_is_not_a_refusal(status: int):
    async with messengers(Response("later", status, {"Location": "/x"})) as (host, _):
        with pytest.raises(TransientError, match=f"^JSON answered {status}$"):
            await Messenger(f"json://{host}/{TOKEN}")([MESSAGE_ROW], META)


@pytest.mark.clause("22.10")
@pytest.mark.clause("22.12")
async def test_a_receiver_that_does_not_answer_is_named_without_its_address():
    with pytest.raises(TransientError, match=r"^ntfy did not answer$"):
        await Messenger(f"ntfy://127.0.0.1:1/{TOKEN}")([MESSAGE_ROW], META)


@pytest.mark.clause("22.10")
@pytest.mark.clause("22.12")
@pytest.mark.parametrize(
    "address",
    [
        *("", TOKEN, f"carrier-pigeon://{TOKEN}", f"discord://{TOKEN}"),
        *(f"ntfys://{TOKEN}, ntfys://b", f"ntfys://{TOKEN} ntfys://b"),
    ],
)
def test_an_address_that_apprise_does_not_know_is_refused_without_repeating_it(address, capfd):
    with pytest.raises(OperatorError, match="must be one address that Apprise knows") as refused:
        Messenger(address)
    assert TOKEN not in str(refused.value) + "".join(capfd.readouterr())


@pytest.mark.clause("22.10")
def test_without_the_library_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(OperatorError, match=r"apprise is missing\): .* -m pip install .*apprise"):
        Messenger("ntfy://h/t")


def make_changes(start: int, after: int, *cells: tuple[str, str, Timeframe]) -> list[ChangeRow]:
    return [make_change(start + at, *cell, after, -after) for at, cell in enumerate(cells)]


TREND, BAYES, REVERSALS, ENZO, LLNR = (
    ("BTC", indicator, "4h")
    for indicator in ("trend_oracle", "bayesian_trend", "reversals", "enzo", "llnr")
)


@pytest.mark.clause("22.10")
@pytest.mark.clause("22.11")
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("least", "first_run", "second_run", "is_late", "is_dated"),
    [
        # After the first run four indicators of BTC are bearish on 4h, and three bullish. After the
        # second one all seven are bullish: the row that turned neutral agrees with none.
        (4, 4, 4, False, True),
        (4, 4, 4, True, True),
        (4, 4, 4, True, False),
        (5, 0, 4, False, True),
        (7, 0, 4, True, True),
    ],
)
async def test_only_rows_with_which_enough_indicators_agree_are_handed_on(
    served_alone: RunningService,
    least: int,
    first_run: int,
    second_run: int,
    is_late: bool,
    is_dated: bool,
):
    cells = (TREND, BAYES, REVERSALS, ENZO)
    first = make_changes(LATER, -1, *cells)
    second_at = LATER + HOUR_MS
    second = make_changes(second_at, 1, *cells)
    second.append(make_change(second_at + 4, "NVDA", "trend_oracle", "1d", 0, -1))

    async def commit(at: int, rows: list[ChangeRow]) -> None:
        await served_alone.market.commit(replace(make_batch(at, rows), written_at=at + 900))
        served_alone.clock.now = at + 2000

    receiver = Receiver()
    steps = [partial(commit, LATER, first), partial(commit, second_at, second)]
    if is_late:
        # The follower was away: it reads both runs at once, and judges each by its own board.
        for step in steps:
            await step()
        steps = []
    since = format_instant(LATER - 1)
    await follow(served_alone, receiver, *steps, since=since, least=least, is_dated=is_dated)
    assert receiver.ids == [row.id for row in first[:first_run] + second[:second_run]]
    # Also the place of a row that is left out is saved.
    assert receiver.saved[-1] == format_instant(second[-1].created_at)


@pytest.mark.clause("22.10")
@pytest.mark.clause("22.11")
async def test_the_command_takes_the_condition(
    recording: RunningService,
    capsys: pytest.CaptureFixture[str],
):
    await run_follow(recording, "--json", "--ticker", "BTC", "--when", "confluence>=5")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    rows = [json.loads(line) for line in lines]
    # On 4h all seven are bullish; on 1h four, and the legacy key, which does not count.
    assert [(row["indicator"], row["timeframe"]) for row in rows] == [("ceres", "4h")]


@pytest.mark.clause("22.10")
@pytest.mark.clause("22.7")
async def test_without_a_cursor_a_refused_row_is_printed(
    recording: RunningService,
    capsys: pytest.CaptureFixture[str],
):
    [row] = [row for row in await read_rows(recording) if row["ticker"] == "NVDA"]
    async with messengers(Response("no", 403)) as (host, _):
        await run_follow(recording, "--ticker", "NVDA", "--notify", f"json://{host}")
    printed = capsys.readouterr().err
    [kept] = json.loads(printed.split("JSON answered 403: no; not kept: ")[1].splitlines()[0])
    assert kept["id"] == row["id"]


@pytest.mark.clause("22.10")
async def test_the_rows_of_a_run_are_one_delivery_on_request(served_alone: RunningService):
    # They are on three pages.
    await served_alone.market.commit(make_batch(LATER, make_flips(LATER, 450)))
    batches: list[list[str]] = []

    class Batching(Receiver):
        async def __call__(self, rows: Sequence[Json], meta: Json) -> None:
            batches.append([row["created_at"][:13] for row in rows])
            await super().__call__(rows, meta)

    receiver = Batching()
    await follow(served_alone, receiver, per_run=True)
    assert batches == [
        ["2026-09-30T11"] * 2,
        ["2026-09-30T12"] * 6,
        [format_instant(LATER)[:13]] * 450,
    ]
    assert receiver.saved == [receiver.rows[place]["created_at"] for place in (1, 7, 457)]


async def start_notifying(
    service: RunningService, folder: Path, *arguments: str, **settings: str
) -> Process:
    return await asyncio.create_subprocess_exec(
        *(*COMMAND, "feed", "--follow", "--url", service.base_url, "--since", BEGINNING),
        *("--cursor", "cursor", "--notify", *arguments),
        cwd=folder,
        env=build_environment(folder, api_key=service.api_key, **settings),
        stderr=PIPE,
    )


@pytest.mark.clause("22.10")
@pytest.mark.clause("22.2", "22.7", "22.12")
async def test_a_refused_row_is_parked_and_the_others_come_although_it_is_killed(
    recording: RunningService,
    tmp_path: Path,
):
    rows = await read_rows(recording)
    shown: list[bytes] = []

    def kill() -> Response:
        shown.extend(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))
        process.kill()
        return Response()

    async with messengers() as (host, doubles):
        # Apprise lets seconds pass between messages to the others.
        address = f"json://{host}/{TOKEN}"
        doubles.planned = [JSONResponse({"error": f"no topic {TOKEN}"}, 403), kill]
        # In the list of processes the address is there for a moment, then it is overwritten.
        process = await start_notifying(recording, tmp_path, address, log_level="debug")
        _, killed = await asyncio.wait_for(process.communicate(), ENDS_WITHIN_S)
        assert process.returncode == -signal.SIGKILL
        process = await start_notifying(recording, tmp_path, notify_url=address)
        _, ended = await asyncio.wait_for(process.communicate(), ENDS_WITHIN_S)
        assert process.returncode == 0
    assert [text.split("\n")[1].split()[0] for _, text in doubles.received] == [
        row["ticker"] for row in rows[1:]
    ]
    [parked] = map(json.loads, (tmp_path / "cursor.parked").read_text().splitlines())
    assert parked["row"]["id"] == rows[0]["id"]
    assert parked["refused"] == 'JSON answered 403: {"error":"no topic (hidden)"}'
    assert killed.decode().count(parked["refused"]) == 1
    assert any(b"--notify" in one and b"*" * len(address) in one for one in shown)
    assert [one for one in (*shown, killed, ended) if TOKEN.encode() in one] == []
