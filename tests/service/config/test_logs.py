"""Each event is one line, in JSON or as text, and secrets that are logged by mistake are masked."""

import json
import logging
import os
import pty
import re
from datetime import datetime
from pathlib import Path

import pytest
import structlog

from service.config.logs import LogFormat
from service.config.settings import Settings, SettingsError
from tests.service.commands.test_cli import write_bars
from tests.support.signals_command import (
    ForkedCommand,
    RunningCommand,
    build_environment,
    capture_log,
    find_free_port,
    parse_events,
)

pytestmark = pytest.mark.clause("operation")

FORMATS: tuple[LogFormat, ...] = ("json", "text")
TOKENS = [f"{kind}_" + "A-_z" * 10 + "123" for kind in ("ct", "sl", "ss", "ac", "at", "rt")]
TOKENS.append(f"{TOKENS[-1]}.{TOKENS[-1][3:]}")
OTHERS = ["sk_live_51Abc", "rk_test_51Abc", "whsec_abc"]
LIBRARIES = ("uvicorn.error", "asyncio", "asyncpg", "aiohttp", "ccxt", "stripe", "httpx")


def logged(log_format: LogFormat, **facts: object) -> str:
    with capture_log(log_format=log_format) as err:
        structlog.get_logger("tests").info("happened", **facts)
    return err.getvalue()


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize("secret", ["ek_" + "A-z_9" * 8 + "aZ0", *TOKENS, *OTHERS])
def test_a_secret_is_masked_in_any_value(secret, log_format):
    line = logged(
        log_format,
        alone=secret,
        within=f"Authorization: Bearer {secret}, twice {secret}",
        listed=[secret, "x"],
        failure=ValueError(secret),
        quoted=f'{{"claim_token":"{secret}"}}',
        named={"key": (secret,)},
    )
    hidden = secret.rpartition("_")[2] if secret in OTHERS else secret[3:]
    assert hidden not in line
    assert line.count("***") == 7


def test_a_line_is_a_json_object_with_the_time_first():
    line = logged("json", rows=3, late=["BTC", "WEEK_X"], why="direct_ask is no token", none=None)
    event = json.loads(line)
    assert (line.count("\n"), list(event)[:3]) == (1, ["timestamp", "level", "event"])
    assert datetime.fromisoformat(event.pop("timestamp")).utcoffset().total_seconds() == 0
    assert event == {
        "level": "info",
        "event": "happened",
        "rows": 3,
        "late": ["BTC", "WEEK_X"],
        "why": "direct_ask is no token",
        "none": None,
    }


def test_a_line_of_text_begins_with_the_time():
    line = logged("text", rows=3, late=["BTC", "WEEK_X"], why="direct_ask is no token")
    assert re.match(r"[0-9-]{10}T[0-9:.]+Z \[info +\] happened  ", line)
    for part in ("rows=3", "late=['BTC', 'WEEK_X']", "why='direct_ask is no token'"):
        assert part in line


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize(
    "letter",
    ["\n", "\r", "\x00", "\x1b", "\x7f", "\x85", "\u2028", "\u202e", "\xa0", " ", '"', "'", '",'],
)
def test_a_text_that_clients_choose_forges_no_line_and_no_field(letter, log_format):
    text = f"{letter}level=error event=forged{letter}"
    line = logged(log_format, text=text, listed=[text], failure=ValueError(text), alone=letter)
    assert line.endswith("\n")
    assert line.rstrip("\n").isprintable()
    assert len(line.splitlines()) == 1
    if log_format == "json":
        event = json.loads(line)
        assert (event["level"], event["event"]) == ("info", "happened")
        assert set(event) == {"timestamp", "level", "event", "text", "listed", "failure", "alone"}
    else:
        # All that is outside of quotes.
        assert "forged" not in re.sub(r"'(?:[^'\\]|\\.)*'" + r'|"(?:[^"\\]|\\.)*"', "", line)


def test_a_decoded_line_has_no_control_character():
    event = json.loads(logged("json", text="\x1b[31m\r", listed=["\x1b"]))
    assert (event["text"], event["listed"]) == (r"\x1b[31m\r", [r"\x1b"])


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_librarys_traceback_becomes_one_line_without_values(library, log_format):
    with capture_log(log_format=log_format) as err:
        fail(logging.getLogger(library), "a@example.org")
    (line,) = err.getvalue().splitlines()
    for part in (library, "It failed", "ValueError", "in fail"):
        assert part in line
    assert "example.org" not in line


def fail(logger: logging.Logger, value: str) -> None:
    """Log as libraries do, with values in later lines of the message and of the exception."""
    try:
        raise ValueError(value)
    except ValueError:
        logger.exception("It failed\nfuture: %s", value)


@pytest.mark.parametrize(
    ("level", "own", "others"),
    [
        ("debug", ["debug", "info", "warning", "error"], ["warning", "error", "critical"]),
        ("info", ["info", "warning", "error"], ["warning", "error", "critical"]),
        ("warning", ["warning", "error"], ["warning", "error", "critical"]),
        ("error", ["error"], ["error", "critical"]),
    ],
)
def test_the_level_bounds_the_lines_and_libraries_log_warnings_at_the_least(level, own, others):
    """Debug lines of libraries hold values: Stripe's library logs what it posts."""
    logger, library = structlog.get_logger("tests"), logging.getLogger("stripe")
    with capture_log(level) as err:
        for name in ("debug", "info", "warning", "error"):
            logger.log(getattr(logging, name.upper()), "ours")
        for number in (5, 10, 20, 35, 40, 60):
            library.log(number, "theirs")
    events = parse_events(err.getvalue().splitlines())
    assert [event["level"] for event in events if event["event"] == "ours"] == own
    assert [event["level"] for event in events if event["event"] == "stripe"] == others


@pytest.mark.parametrize("variable", ["SIGNALS_LOG_LEVEL", "SIGNALS_LOG_FORMAT"])
def test_a_wrong_value_is_refused_with_the_accepted_ones(variable):
    with pytest.raises(SettingsError) as refused:
        Settings.read({variable: "loud"})
    accepted = "'error'" if variable.endswith("LEVEL") else "'auto'"
    assert str(refused.value).startswith(f"{variable}='loud': ")
    assert accepted in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("on_terminal", "log_format", "is_json"),
    [
        (False, "auto", True),
        (False, "text", False),
        (True, "auto", False),
        (True, "json", True),
    ],
)
@pytest.mark.sampled(2)
@pytest.mark.prove
def test_serve_logs_json_unless_on_a_terminal_or_set_otherwise(
    tmp_path: Path, on_terminal: bool, log_format: LogFormat, is_json: bool
):
    env = build_environment(
        tmp_path,
        port=find_free_port(),
        source=f"files:{write_bars(tmp_path / 'bars')}",
        log_format=log_format,
    )
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    process = RunningCommand(
        ForkedCommand(tmp_path, ["serve", "--single-process"], env, theirs), ours
    )
    os.close(theirs)
    try:
        line = process.wait_for_line("caught_up")
        assert process.stop() == 0
    finally:
        process.kill()
    # On a terminal, the line follows what ends the progress bar.
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)
    if is_json:
        assert json.loads(plain)["event"] == "caught_up"
    else:
        assert re.match(r"[0-9-]{10}T[0-9:.]+Z \[info +\] caught_up ", plain)
