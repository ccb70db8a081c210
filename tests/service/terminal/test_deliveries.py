"""Rows reach the program or the address of the user, signed as Standard Webhooks does."""

import base64
import json
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook
from starlette.responses import Response

from service.terminal.deliveries import (
    DeliveryError,
    ProgramRunner,
    SecretError,
    WebhookSender,
    parse_post_url,
    parse_webhook_secret,
    sign,
)
from service.terminal.follow import TransientError
from tests.doubles.fixed_answers import answering

pytestmark = pytest.mark.clause("22.4", "22.7")

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def test_a_signature_is_the_one_of_the_reference_library():
    body = '{"ticker":"BRK.B","price":1.5,"name":"Ω"}'
    headers = sign(parse_webhook_secret(SECRET), "universe:BTC", 1_790_769_600, body.encode())
    at = datetime.fromtimestamp(1_790_769_600, UTC)
    assert headers == {
        "webhook-id": "universe:BTC",
        "webhook-timestamp": "1790769600",
        "webhook-signature": Webhook(SECRET).sign("universe:BTC", at, body),
    }


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
    with pytest.raises(SecretError, match="whsec_ followed by 24 to 64 bytes") as refused:
        parse_webhook_secret(secret)
    assert secret.removeprefix("whsec_") == "" or secret not in str(refused.value)


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


async def test_a_program_gets_the_row_as_one_line_of_json(tmp_path):
    await ProgramRunner(f"cat >> {tmp_path}/rows")(ROW, META)
    text = (tmp_path / "rows").read_text()
    assert text.count("\n") == 1
    assert json.loads(text) == EVENT


async def test_a_program_does_not_have_to_read_the_row():
    await ProgramRunner("exec true")({**ROW, "indicator_name": "x" * 1_000_000}, META)


async def test_a_failed_program_is_run_again():
    with pytest.raises(TransientError, match="the program failed with status 3"):
        await ProgramRunner("exit 3")(ROW, META)


async def test_a_program_that_does_not_exist_ends_the_command():
    with pytest.raises(DeliveryError, match="status 127"):
        await ProgramRunner("/nowhere/program 2> /dev/null")(ROW, META)


def open_sender(url: str, *times: int) -> WebhookSender:
    clock = iter(times)
    return WebhookSender(f"{url}/hook", parse_webhook_secret(SECRET), lambda: next(clock))


@pytest.mark.clause("22.4")
async def test_each_attempt_has_the_same_id_and_a_signature_of_its_own():
    import time

    now = time.time_ns() // 1_000_000
    async with answering(Response(status_code=503), Response(status_code=204)) as (url, received):
        send = open_sender(url, now - 9000, now)
        with pytest.raises(TransientError):
            await send(ROW, META)
        await send(ROW, META)
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


@pytest.mark.parametrize("status", [302, 400, 404, 429, 500])
async def test_an_answer_without_success_is_tried_again(status):
    refusal = Response(status_code=status, headers={"Retry-After": "7", "Location": "/other"})
    async with answering(refusal) as (url, received):
        with pytest.raises(TransientError, match=f"answered {status}") as failed:
            await open_sender(url, 0)(ROW, META)
    assert failed.value.retry_after_s == 7
    assert len(received) == 1


async def test_an_address_that_does_not_answer_is_named_without_its_path():
    with pytest.raises(TransientError, match=r"^127\.0\.0\.1:1 did not answer \(ConnectError\)$"):
        await open_sender("http://127.0.0.1:1/secret", 0)(ROW, META)


async def test_an_address_that_is_gone_ends_the_command():
    async with answering(Response(status_code=410)) as (url, _):
        with pytest.raises(DeliveryError, match="410"):
            await open_sender(url, 0)(ROW, META)


@pytest.mark.parametrize("url", ["example.com", "ftp://h/", "http://", "https://me:secret@h/"])
def test_an_invalid_address_is_refused_without_repeating_it(url):
    with pytest.raises(DeliveryError, match="--post must be") as refused:
        parse_post_url(url)
    assert "secret" not in str(refused.value)
