"""A service that cannot be audited: one line without the key, and exit status 1."""

import json
import socket
from collections.abc import Callable

import pytest
import structlog

from service.commands.cli import main
from tests.doubles.fixed_answers import KEY, loopback
from tests.service.commands.test_cli import only_line
from tests.support.signals_command import run_signals

pytestmark = [pytest.mark.clause("audit"), pytest.mark.usefixtures("use_single_ca")]


@pytest.fixture
def refusal(monkeypatch, capsys) -> Callable[..., str]:
    """Run an audit that fails in this process; return the only line that it prints."""

    def run(url: str, api_key: str | None = KEY) -> str:
        if api_key is not None:
            monkeypatch.setenv("SIGNALS_API_KEY", api_key)
        assert main(["audit", "--public", url]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "k" * 20 not in printed.err
        return only_line(printed.err)

    yield run
    structlog.reset_defaults()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_the_key_is_not_sent(refusal, status):
    with loopback(200, b"{}") as (other, strangers):
        with loopback(status, Location=f"{other}/api/v1/state?key={KEY}") as (address, asked):
            line = refusal(address)
        assert [request["authorization"] for request in asked] == [f"Bearer {KEY}"]
        assert strangers == []
    assert (
        f"redirects /api/v1/state to {other}/api/v1/state?key=(the key); redirects are not" in line
    )


def test_an_exhausted_quota_says_when_to_retry(refusal):
    body = json.dumps({"error": "rate_limited", "message": f"Used up by\n\x1b[31m{KEY}."}).encode()
    with loopback(429, body, Retry_After="3600") as (address, asked):
        line = refusal(address)
    assert (
        "with 429 (rate_limited); retry after 3600 seconds: Used up by \\u001b[31m(the key)."
        in line
    )
    assert len(asked) == 1


def test_a_service_before_its_first_run_says_when_to_retry(refusal):
    with loopback(503, b'{"error": "unavailable"}', Retry_After="900") as (address, _):
        line = refusal(address)
    assert "503 (unavailable); retry after 900 seconds" in line


@pytest.mark.parametrize("body", [b"<html>", b"", b"[1]", b"\xff\xfe{", b"[" * 100_000])
def test_a_response_without_a_json_object_fails_in_one_line(refusal, body):
    with loopback(200, body, Content_Type="text/html") as (address, _):
        line = refusal(address)
    assert "without a JSON object (text/html); is it the base address" in line


@pytest.mark.parametrize(
    "body", [{}, {"as_of": 1}, {"as_of": "2026"}, {"as_of": "0001-01-02T00:00Z"}]
)
def test_a_response_that_breaks_the_contract_fails_in_one_line(refusal, body):
    with loopback(200, json.dumps(body).encode()) as (address, _):
        line = refusal(address)
    assert "does not match the API contract" in line


def test_a_wrong_key_fails_in_one_line(bars_service, refusal):
    line = refusal(bars_service[0])
    assert "refused /api/v1/state with 401 (invalid_key); check the key in SIGNALS_API_KEY" in line


@pytest.mark.parametrize("api_key", [None, "", "  "])
def test_without_a_key_nothing_is_sent(refusal, api_key):
    with loopback(200, b"{}") as (address, asked):
        line = refusal(address, api_key)
    assert line == "signals: SIGNALS_API_KEY is not set: set it to your API key"
    assert asked == []


@pytest.mark.parametrize("api_key", [f"{KEY}\n{KEY}", f"{KEY}é"])
def test_a_key_with_invalid_characters_fails_in_one_line(refusal, api_key):
    line = refusal("http://127.0.0.1:9", api_key)
    assert (
        line
        == "signals: SIGNALS_API_KEY contains invalid characters: set it to the key as it was shown"
    )


def test_a_dead_port_fails_in_one_line(refusal):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    line = refusal(address)
    assert line.startswith(f"signals: {address} did not answer /api/v1/state: ConnectError")


def test_a_broken_connection_fails_in_one_line(refusal):
    with loopback(200, b"", Content_Length="10") as (address, _):
        line = refusal(address)
    assert "did not answer /api/v1/state: RemoteProtocolError" in line


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://127.0.0.1",
        "http://",
        "http://[::1",
        "http://127.0.0.1:99999",
        f"http://me:{KEY}@127.0.0.1:9",
        f"http://127.0.0.1:9/?key={KEY}",
    ],
)
def test_an_invalid_address_fails_in_one_line(refusal, url):
    line = refusal(url)
    assert line.startswith("signals: --public ")


@pytest.mark.parametrize("days", ["0", "366", "-1", "many"])
def test_days_are_bounded(days):
    with pytest.raises(SystemExit, match="2"):
        main(["audit", "--public", "http://127.0.0.1:9", "--days", days])


def test_days_need_the_public_audit(tmp_path):
    done = run_signals(tmp_path, "audit", "--days", "30")
    assert (done.returncode, done.stdout) == (1, "")
    assert only_line(done.stderr).startswith("signals: --days needs --public URL")
