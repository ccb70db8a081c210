"""Stores written when codes were positions in lists keep their meaning."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from compute.audit.audit import audit_market
from compute.indicators.registry import INDICATORS
from compute.universe import Universe
from store.sql.market_store import MarketStore
from tests.store.conftest import OpenMarket
from tests.support.old_stores import (
    build_database_url,
    load_expected,
    load_rows,
    open_old_access,
    restore_old_stores,
)
from tests.support.signals_command import find_free_port, run_signals, start_signals
from tests.support.small_market import (
    END,
    HOUR_S,
    START,
    give_sundays_a_bar,
    list_opens,
    load_small_universe,
    make_bars,
    open_pipeline,
    write_bars,
    write_small_market,
)
from tests.support.store_homes import SqliteHome, StoreHome

pytestmark = pytest.mark.clause("store")

BUYER = "agent@example.com"


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    """The small market as it was then: XAU had a bar every day."""
    folder = write_small_market(tmp_path)
    write_bars(folder, "XAU", make_bars("XAU", list_opens(START + 5 * HOUR_S, END, 24)))
    return folder


@pytest.fixture
def universe(tmp_path: Path) -> Universe:
    return give_sundays_a_bar(load_small_universe(tmp_path))


@pytest.fixture
async def old_home(home: StoreHome, bars: Path) -> StoreHome:
    """A home of each engine in turn that holds the old stores."""
    await restore_old_stores(home, bars)
    return home


def find_old_access(home: StoreHome) -> dict[str, Any]:
    access: dict[str, Any] = load_expected()["access"]
    return access["sqlite" if isinstance(home, SqliteHome) else "postgres"]


def drop_meta(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "meta"}


def drop_dexter(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer whose results do not count the votes of dexter, which no longer agree."""
    rest = drop_meta(answer)
    if "results" not in rest:
        return rest
    direction = rest["query"]["direction"]
    counted = [
        [vote for key, vote in result["votes"].items() if key != "dexter"].count(direction)
        for result in rest["results"]
    ]
    results = zip(rest["results"], counted, strict=True)
    return rest | {"results": [one | {"agree": agree, "score": 0} for one, agree in results]}


async def assert_clean(store: MarketStore, universe: Universe) -> None:
    report = await audit_market(store, universe, INDICATORS)
    assert report.findings == []
    # The alerts of engines that measured the cooldown by nominal hours.
    assert all(name.endswith(": another version's") for name in report.not_verifiable)
    assert report.checked["changes"] > 0


async def test_every_old_row_keeps_its_meaning(
    old_home: StoreHome, open_market: OpenMarket, universe: Universe
):
    expected = load_expected()["rows"]
    store = await open_market()
    rows = await load_rows(store)
    assert {key for _, _, key, *_ in rows["changes"]} > {"perpkit", "dexter"}
    assert {row[3] for row in rows["changes"]} == {"1h", "4h", "1d"}
    assert {row[6] for row in rows["alerts"]} == {"LONG", "SHORT", "CLOSE"}
    assert rows.pop("digest") == [[digest] for digest in expected["digest"]]
    assert rows == {name: expected[name] for name in rows}


@pytest.mark.sampled(2)
async def test_an_old_store_continues_as_with_the_version_that_wrote_it(
    old_home: StoreHome, open_market: OpenMarket, universe: Universe, bars: Path
):
    old, later = load_expected()["rows"], load_expected()["later"]
    old_keys = {row[2] for row in old["readings"] + old["carries"]}
    store = await open_market()
    await (await open_pipeline(store, bars, universe)).run_until(END)
    await assert_clean(store, universe)
    rows = await load_rows(store)
    for name in ("changes", "alerts"):
        kept, added = rows[name][: len(old[name])], rows[name][len(old[name]) :]
        assert kept == old[name]
        # A new indicator's rows may come in between and move the others by milliseconds. Alerts
        # have another epoch, because their engines have another version.
        kept = [row for row in added if row[2] in old_keys]
        assert [row[1:5] + row[6:] for row in kept] == [row[1:5] + row[6:] for row in later[name]]
    for name in ("readings", "carries"):
        found, expected = (
            [row for row in of[name] if not row[2].startswith("alerts.")] for of in (rows, later)
        )
        assert [row for row in found if row[2] in old_keys] == expected


async def test_old_keys_counts_claims_and_memberships_are_kept(old_home: StoreHome):
    expected = find_old_access(old_home)
    store = await open_old_access(old_home)
    (membership,) = await store.list_memberships_by_email(BUYER)
    assert (membership.row.provider, membership.row.mode) == ("sandbox", expected["claim"]["mode"])
    assert membership.ended_at is None
    (member_key,) = await store.list_member_keys(membership.id, expected["day"])
    assert member_key.used == expected["usage"]["quota"]["used_today"]
    redeemed, pending = [
        await store.find_claim(sha256(expected[token].encode()).digest())
        for token in ("claim_token", "open_claim_token")
    ]
    assert redeemed is not None
    assert redeemed.redeemed_at is not None
    assert pending is not None
    assert (pending.redeemed_at, pending.billing) == (None, "yearly")
    await store.close()


@pytest.mark.sampled(2)
def test_old_answers_are_given_again(old_home: StoreHome, tmp_path: Path):
    expected, url = find_old_access(old_home), build_database_url(old_home)
    listed = run_signals(tmp_path, "keys", "list", database_url=url)
    assert listed.stdout == expected["keys"]
    port = find_free_port()
    with start_signals(tmp_path, "serve", "--no-compute", port=port, database_url=url) as process:
        process.wait_for_line("Listening on ")
        address = f"http://127.0.0.1:{port}/api/v1/"
        for key, status in (("operator", 200), ("bought", 200), ("revoked", 403)):
            usage = httpx.get(f"{address}usage", headers={"X-Api-Key": expected[key]})
            assert usage.status_code == status, key
        # An earlier version counted the votes of confluence without dexter, and rounded the score.
        answers = load_expected()["answers"].items()
        for path, answer in ((p, a) for p, a in answers if not p.startswith("confluence")):
            got = httpx.get(address + path, headers={"X-Api-Key": expected["operator"]})
            assert drop_dexter(got.json()) == drop_dexter(answer), path
        assert process.stop() == 0
