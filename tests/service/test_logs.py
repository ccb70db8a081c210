"""Secrets that somebody logs by mistake are masked in every value of every line."""

import io
from contextlib import redirect_stderr

import pytest
import structlog

from service.logs import log_to_standard_error

pytestmark = pytest.mark.clause("operation")

CLAIM_TOKEN = "ct_" + "A-_z" * 10
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


@pytest.mark.parametrize("secret", ["ek_" + "A-z_9" * 8 + "aZ0", CLAIM_TOKEN, *OTHERS])
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
