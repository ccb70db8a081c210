"""Secrets that somebody logs by mistake are masked in every value of every line."""

import io
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr

import pytest
import structlog

from service.config.logs import LIBRARIES, log_to_standard_error

pytestmark = pytest.mark.clause("operation")

TOKENS = [f"{kind}_" + "A-_z" * 10 for kind in ("ct", "sl", "ss")]
OTHERS = ["sk_live_51Abc", "rk_test_51Abc", "whsec_abc"]


def logged(**facts: object) -> str:
    """Return the line that an event gives."""
    err = io.StringIO()
    try:
        with redirect_stderr(err):
            log_to_standard_error()
            structlog.get_logger("tests").info("happened", **facts)
    finally:
        structlog.reset_defaults()
    return err.getvalue()


@pytest.mark.parametrize("secret", ["ek_" + "A-z_9" * 8 + "aZ0", *TOKENS, *OTHERS])
def test_a_secret_is_masked_wherever_it_stands(secret):
    line = logged(
        alone=secret,
        within=f"Authorization: Bearer {secret}, twice {secret}",
        listed=[secret, "x"],
        failure=ValueError(secret),
        quoted=f'{{"claim_token":"{secret}"}}',
    )
    hidden = secret.rpartition("_")[2] if secret in OTHERS else secret[3:]
    assert hidden not in line
    assert line.count("***") == 6


def test_everything_else_stays_as_it_is():
    line = logged(rows=3, late=["BTC", "WEEK_X"], why="direct_ask is no token", none=None)
    for part in ("rows=3", "late=\"['BTC', 'WEEK_X']\"", 'why="direct_ask is no token"'):
        assert part in line
    assert "***" not in line
    assert "level=info" in line


@pytest.mark.parametrize("letter", ["\n", "\r", "\x00", "\x1b", "\x7f", "\x85", "\u2028", "\u202e"])
def test_what_would_end_a_line_or_steer_a_terminal_is_written_out(letter):
    text = f"{letter}level=error event=forged{letter}"
    line = logged(text=text, listed=[text], failure=ValueError(text), alone=letter)
    assert line.endswith("\n")
    assert line.rstrip("\n").isprintable()
    assert len(line.splitlines()) == 1


@pytest.fixture
def libraries() -> Iterator[list[logging.Logger]]:
    """The loggers of libraries, afterwards as they were."""
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    yield loggers
    for logger, (handlers, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate


def test_a_library_that_logs_a_traceback_gets_one_line_without_its_values(libraries):
    err = io.StringIO()
    try:
        with redirect_stderr(err):
            log_to_standard_error()
            for logger in libraries:
                fail(logger.getChild("error"), "a@example.org")
    finally:
        structlog.reset_defaults()
    lines = err.getvalue().splitlines()
    assert len(lines) == len(libraries) == 3
    for line in lines:
        assert 'said="It failed"' in line
        assert "failure=ValueError" in line
        assert "in fail" in line
        assert "example.org" not in line


def fail(logger: logging.Logger, value: str) -> None:
    """Log as libraries do: values in later lines of the text and in the exception's."""
    try:
        raise ValueError(value)
    except ValueError:
        logger.exception("It failed\nfuture: %s", value)
