"""Messages reach people by Apprise, conditions choose rows, refused ones are parked."""

import asyncio
import json
import logging
import signal
import sys
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
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from schemas.errors import OperatorError
from schemas.vocabulary import Timeframe, format_instant
from service.terminal.commands import TransientError
from service.terminal.deliveries import Messenger, RefusalError
from store.market_rows import ChangeRow
from tests.service.terminal.test_deliveries import META, SERVED_ROW
from tests.service.terminal.test_follow import (
    BEGINNING,
    LATER,
    Receiver,
    follow,
    read_rows,
    run_follow,
)
from tests.support.example_market import HOUR_MS, make_batch, make_change
from tests.support.running_service import RunningService, open_loopback_socket, run_app
from tests.support.signals_command import COMMAND, ENDS_WITHIN_S, build_environment
from verifier.client import Json

pytestmark = pytest.mark.clause("22.10")

TOKEN = "s3cretTokenOf-Receiver_" + "x" * 40
ROW = {**SERVED_ROW, "transition": {"from": "neutral", "to": "bullish"}, "action": None}
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("address", "path", "title"), RECEIVERS.values(), ids=RECEIVERS)
async def test_a_row_is_a_message_of_one_line(address: str, path: str, title: str):
    async with messengers() as (host, doubles):
        await Messenger(address.replace("HOST", host))([ROW], META)
    shown = LINE.replace(">", "&gt;") if "slack" in path or "telegram" in path else LINE
    assert doubles.received == [(path, f"{title}\n{shown}")]


@pytest.mark.parametrize(("address", "path", "title"), RECEIVERS.values(), ids=RECEIVERS)
async def test_rows_of_a_run_are_a_line_each_in_messages_that_are_short_enough(
    address: str, path: str, title: str
):
    rows = [{**ROW, "ticker": f"A{number}"} for number in range(120)]
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
            await Messenger(address.replace("HOST", host))([ROW], META)
    logging.getLogger().removeHandler(handler)
    said = str(refused.value)
    assert f" answered {status}: " in said
    assert words in said
    secrets = [part for part in path.split("/") if len(part) > 20]
    printed = said + "".join(capfd.readouterr())
    assert [one for one in secrets if one.removeprefix("telegram") in printed] == []


@pytest.mark.parametrize("status", [302, 408, 425, 429, 500, 503])
async def test_an_answer_that_may_pass_is_not_a_refusal(status: int):
    async with messengers(Response("later", status, {"Location": "/x"})) as (host, _):
        with pytest.raises(TransientError, match=f"^JSON answered {status}$"):
            await Messenger(f"json://{host}/{TOKEN}")([ROW], META)


@pytest.mark.clause("22.12")
async def test_a_receiver_that_does_not_answer_is_named_without_its_address():
    with pytest.raises(TransientError, match=r"^ntfy did not answer$"):
        await Messenger(f"ntfy://127.0.0.1:1/{TOKEN}")([ROW], META)


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
    expected = [row.id for row in first[:first_run] + second[:second_run]]
    assert receiver.ids == expected
    # Also the place of a row that is left out is saved.
    assert receiver.saved[-1] == format_instant(second[-1].created_at)


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


async def test_the_rows_of_a_run_are_one_delivery_on_request(served_alone: RunningService):
    batches: list[list[str]] = []

    class Batching(Receiver):
        async def __call__(self, rows: Sequence[Json], meta: Json) -> None:
            batches.append([row["created_at"][:13] for row in rows])
            await super().__call__(rows, meta)

    receiver = Batching()
    await follow(served_alone, receiver, per_run=True)
    assert batches == [["2026-09-30T11"] * 2, ["2026-09-30T12"] * 6]
    assert receiver.saved == [receiver.rows[1]["created_at"], receiver.rows[7]["created_at"]]


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
