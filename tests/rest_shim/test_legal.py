"""The privacy section of /legal against the tables and the retention of the access store."""

from dataclasses import asdict

import pytest

from access.call_log import CALLS_KEPT_PER_KEY
from access.maintenance import compute_cutoffs
from schemas.vocabulary import DAY_MS
from tests.support.row_builders import run_sql
from tests.support.running_service import RunningService
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("documents")

# By table of the access store: words of the section about its rows.
PRIVACY_TEXTS = {
    "keys": "a SHA-256 hash of the key, never the key itself, and its label",
    "usage": "the number of calls with it on each UTC day",
    "tool_usage": "the number of calls with each tool on each UTC day",
    "calls": "neither arguments nor addresses",
    "claims": "the e-mail address and the agent's name given at checkout",
    "sandbox_sessions": "the payment processor's id and address of the checkout",
    "memberships": "its ids of your subscription and customer record",
    "events": "the ids of the payment processor's notifications",
    "access_requests": "its e-mail address and its other fields",
    "sign_in_links": "SHA-256 hashes of the sign-in link",
    "sessions": "of your session, with your e-mail address",
    "oauth_clients": "the program's name, id and redirect addresses",
    "oauth_requests": "with the program's state and challenge",
    "oauth_connections": "SHA-256 hashes of the code and the tokens of the connection",
    "oauth_grants": "SHA-256 hashes of the code and the tokens of the connection",
    "oauth_access_tokens": "an access token is deleted within a day after it expires",
    "watchlist": "its tickers and when you added each, with your e-mail address",
    "attempts": "the address and its networks",
    "notices": "the address of the latest such proxy",
}
IMPERSONAL_TABLES = {"migrations", "store_id", "sqlite_sequence"}


async def read_privacy_section(served: RunningService) -> str:
    text = (await served.client.get("/legal")).text
    return " ".join(text.split("## Privacy")[1].split("## Licence")[0].split())


async def test_the_privacy_section_covers_every_table_about_people(served: RunningService) -> None:
    stored = await read_privacy_section(served)
    path = served.access._engine.path  # type: ignore[attr-defined]
    names = run_sql(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")
    assert {name for (name,) in names} == {*PRIVACY_TEXTS, *IMPERSONAL_TABLES}
    for words in PRIVACY_TEXTS.values():
        assert words in stored


async def test_the_privacy_section_states_how_long_data_is_kept(served: RunningService) -> None:
    stored = await read_privacy_section(served)
    cutoffs = asdict(compute_cutoffs(1000 * DAY_MS))
    kept_days = {name: 1000 - cutoff // DAY_MS for name, cutoff in cutoffs.items()}
    assert kept_days == {
        "usage": 400,
        "unredeemed_claims": 90,
        "events": 30,
        "attempts": 1,
        "sign_ins": 0,
        "access_requests": 180,
        "calls": 30,
        "oauth_clients": 90,
    }
    for words in (
        "on each UTC day, for 400 days",
        "with each tool on each UTC day, for 30 days",
        "deleted 90 days after the checkout ended",
        "notifications, for 30 days",
        "for at most a day and are deleted within two",
        "with your e-mail address, until a day after they expire (after 15 minutes and 7 days)",
        "until 180 days after its last change",
        "deleted 90 days after it last requested access",
        f"its last {CALLS_KEPT_PER_KEY} calls, for up to 30 days",
    ):
        assert words in stored
