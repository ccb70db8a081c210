"""The privacy section of /legal against the tables and the retention of the access store."""

import gzip
import json
import re
from dataclasses import asdict
from datetime import datetime

import pytest

from access.call_log import CALLS_KEPT_PER_KEY
from access.maintenance import compute_cutoffs
from compute.indicators.registry import INDICATORS
from compute.universe import load_universe
from rest_shim.sample import render_sample
from schemas.signals import SignalsMeta, SignalsResponse
from schemas.vocabulary import DAY_MS
from tests.support.bad_inputs import (
    BAD_INPUTS,
    BLANK_INPUTS,
    KEYED_PATHS,
    LEAVES_PATH,
    PROOF_PATH,
    build_path,
)
from tests.support.example_market import (
    LATER,
    make_batch,
    make_change,
    make_coverage,
)
from tests.support.openapi_document import list_operations
from tests.support.row_builders import run_sql
from tests.support.running_service import RunningService, fetch, served as served

pytestmark = pytest.mark.clause("answers", "documents")


MINUTE_PATHS = [
    "/api/v1",
    "/api/v1/",
    "/api/v1/catalog",
    "/api/v1/stats",
    "/api/v1/openapi.json",
]
DAY_PATHS = ["/api/v1/signals/sample", "/legal"]
LOG_PATHS = ["/api/v1/log/checkpoint", "/api/v1/log/key"]
OPEN_PATHS = [*MINUTE_PATHS, *DAY_PATHS, *LOG_PATHS]
# Texts, by their media type.
TEXTS = {"/legal": "text/markdown", **dict.fromkeys(LOG_PATHS, "text/plain")}


@pytest.mark.clause("1.39", "4.14.16", "4.14.21")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("signals_get_state", {}),
        ("signals_get_state", {"ticker": "btc,MATIC", "direction": "bullish"}),
        ("signals_get_signals", {"limit": 3, "offset": 1}),
        ("signals_get_signals", {"direction": "exit"}),
        ("signals_get_signals", {"since": "2026-09-30T12:03:00.003+00:00"}),
        ("signals_get_confluence", {"min_agree": 6, "timeframe": "1d"}),
        ("signals_get_flips", {"timeframe": "1h", "hours": 6}),
        ("signals_get_catalog", {}),
        ("signals_get_stats", {}),
        ("signals_get_usage", {}),
    ],
)
async def test_the_body_equals_the_result_of_the_tool(served, tool, arguments):
    response = await served.get_api(build_path(tool, arguments))
    assert response.status_code == 200
    # Each call has its own key, so that it is the first call with it.
    result = await served.call(tool, arguments, {"X-Api-Key": await served.keys.create("tests")})
    assert response.json() == result["structuredContent"]
    assert response.text == result["content"][0]["text"]


@pytest.mark.clause("4.0.1")
@pytest.mark.prove
async def test_every_body_is_json_except_the_terms_and_the_files_of_the_log(served):
    for method, path in list_operations(served):
        for headers in (served.key_headers, {}):
            response = await served.client.request(method, path, headers=headers)
            if path in TEXTS:
                assert response.headers["content-type"] == f"{TEXTS[path]}; charset=utf-8"
                continue
            assert response.headers["content-type"] == "application/json", path
            assert isinstance(response.json(), dict)


@pytest.mark.clause("4.0.3")
@pytest.mark.parametrize("path", KEYED_PATHS.values())
async def test_a_keyed_read_takes_the_key_in_either_header(served, path):
    for headers in (served.key_headers, {"X-Api-Key": served.api_key}):
        assert (await served.client.get(f"/api/v1{path}", headers=headers)).status_code == 200


@pytest.mark.clause(
    "4.6.7",
    "4.7.12",
    "4.7.14",
    "4.7.27",
    "4.7.28",
    "4.7.29",
    "4.8.5",
    "4.8.11",
    "4.9.4",
    "4.9.5",
    "4.9.7",
    "4.9.9",
    "4.9.11",
    "4.9.19",
    "4.9.23",
    "7.10",
    "7.11",
    "7.12",
    "8.22",
    "8.23",
    "8.30",
    "8.31",
    "8.32",
)
@pytest.mark.parametrize(
    ("way", "tool", "arguments", "code", "named"),
    [
        *((way, *case) for way in ("mcp", "rest") for case in BAD_INPUTS),
        *(("rest", *case) for case in BLANK_INPUTS),
    ],
)
async def test_a_bad_argument_is_refused_with_the_accepted_values(
    served, way, tool, arguments, code, named
):
    error = await served.check_refusal(way, tool, 400, code, *named, **arguments)
    assert "\n" not in error["message"]
    assert len(error["message"]) < 700


@pytest.mark.clause("4.7.27", "7.10")
@pytest.mark.parametrize(
    "query",
    [
        "limit=1&limit=1",
        "ticker=BTC&ticker=ETH",
        "limit",
        "limit=",
        "limit=%31%zz",
        "ticker=%ff",
        "ticker=%",
        "limit=5.0",
        "limit=%D9%A5",
        "limit=+5",
        "limit=" + "9" * 5000,
        "=5",
        "li%6Dit=1&limit=2",
    ],
)
async def test_a_query_string_is_read_strictly(served, query):
    response = await served.get_api(f"/signals?{query}")
    assert (response.status_code, response.json()["error"], set(response.json())) == (
        400,
        "invalid_parameter",
        {"error", "message", "docs"},
    )


@pytest.mark.clause("1.38", "7.17")
@pytest.mark.parametrize("path", KEYED_PATHS.values())
async def test_a_missing_key_is_reported_before_bad_parameters(served, path):
    response = await fetch(served.client, "GET", f"/api/v1{path}?colour=red", 401)
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"] == "missing_key"
    assert "how_to_get_access" in response.json()


@pytest.mark.clause("4.6.11", "7.28")
@pytest.mark.parametrize("path", [path for path in KEYED_PATHS.values() if path != "/usage"])
async def test_nothing_computed_yet_says_when_to_retry(served_empty, path):
    nothing_published = await served_empty.get_api(path)
    await served_empty.market.publish_coverage(make_coverage())
    for response in (nothing_published, await served_empty.get_api(path)):
        assert (response.status_code, response.headers["retry-after"]) == (503, "900")
        assert response.json()["error"] == "unavailable"


@pytest.mark.parametrize("path", OPEN_PATHS)
@pytest.mark.parametrize(
    "query", ["colour=red", "hours=1&hours=2", "limit=&=5", "%zz&%ff", "limit=many"]
)
async def test_open_endpoints_ignore_every_parameter_but_their_own(served, path, query):
    plain = await fetch(served.client, "GET", path, 200)
    assert (await served.client.get(f"{path}?{query}")).content == plain.content


@pytest.mark.clause("1.40", "1.41", "3.5.4", "5.6", "8.12")
@pytest.mark.parametrize("path", OPEN_PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer nonsense"},
        {"Authorization": "Basic x", "X-Api-Key": ""},
        {"X-Api-Key": "ek_" + "a" * 43},
    ],
)
async def test_open_endpoints_ignore_every_key(served, path, headers):
    *_, key = await served.keys.list()
    await served.keys.revoke(key.id)
    plain = await served.client.get(path)
    for sent in (headers, served.key_headers):
        response = await served.client.get(path, headers=sent)
        assert (response.status_code, response.content) == (200, plain.content)
        assert not [name for name in response.headers if name.startswith("x-ratelimit")]


@pytest.mark.clause("8.4", "8.11")
@pytest.mark.parametrize(
    "path", [*OPEN_PATHS, *(f"/api/v1{path}" for path in KEYED_PATHS.values())]
)
async def test_head_answers_as_get_without_a_body(served, path):
    plain = {"Accept-Encoding": "identity", "X-Request-Id": "the.same"}
    get = await served.client.get(path, headers=served.key_headers | plain)
    twin = {"X-Api-Key": await served.keys.create("tests"), **plain}
    head = await served.client.head(path, headers=twin)
    assert (get.status_code, head.status_code, head.content) == (200, 200, b"")
    assert dict(head.headers) == dict(get.headers)
    assert int(head.headers["content-length"]) == len(get.content) > 0


@pytest.mark.parametrize(
    ("paths", "cache"),
    [
        ([f"/api/v1{path}" for path in KEYED_PATHS.values()], "private, no-cache"),
        (MINUTE_PATHS, "public, max-age=60"),
        (DAY_PATHS, "public, max-age=86400"),
        (LOG_PATHS, "no-cache"),
    ],
)
async def test_a_response_states_how_long_it_may_be_cached(served, paths, cache):
    for path in paths:
        response = await served.client.get(path, headers=served.key_headers)
        assert (response.status_code, response.headers["cache-control"]) == (200, cache)


async def test_both_spellings_of_the_manifest_are_served_without_a_redirect(served):
    plain, slash = await served.client.get("/api/v1"), await served.client.get("/api/v1/")
    assert (plain.status_code, slash.status_code) == (200, 200)
    assert plain.content == slash.content


def test_every_get_route_is_tested_above(served):
    served_paths = {path for method, path in list_operations(served) if method == "GET"}
    keyed = (*KEYED_PATHS.values(), PROOF_PATH, LEAVES_PATH)
    assert served_paths == {*OPEN_PATHS, *(f"/api/v1{path}" for path in keyed)}


# A call to usage counts itself, so no two of its results are equal.
SAME = [*OPEN_PATHS, *(f"/api/v1{path}" for path in KEYED_PATHS.values() if path != "/usage")]
STATE = "/api/v1/state"


async def get(served: RunningService, path: str = STATE, **headers: str):
    """GET a path with a key and headers; compression only if the headers request it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"Accept-Encoding": "identity"} | served.key_headers | named
    return await served.client.get(path, headers=sent)


@pytest.mark.parametrize("path", SAME)
async def test_a_response_that_the_client_has_is_not_sent_again(served: RunningService, path: str):
    first = await get(served, path)
    again = await get(served, path, If_None_Match=first.headers["etag"])
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert not {"content-type", "content-length"} & {*again.headers}
    for name in ("etag", "cache-control", "vary"):
        assert again.headers[name] == first.headers[name]


@pytest.mark.clause("4.0.4", "8.4", "8.11")
async def test_a_304_response_counts_as_a_call(served: RunningService):
    first = await get(served)
    again = await get(served, If_None_Match=first.headers["etag"])
    left = [int(answer.headers["x-ratelimit-remaining"]) for answer in (first, again)]
    assert left[0] - left[1] == 1
    for name in ("x-ratelimit-limit", "x-ratelimit-reset"):
        assert again.headers[name] == first.headers[name]


@pytest.mark.parametrize(
    ("named", "status"),
    [
        ("*", 304),
        ('"other", {}', 304),
        ('"other",{} , "third"', 304),
        ("{strong}", 304),
        ('"other"', 200),
        ('W/"other"', 200),
        ("", 200),
        ("{bare}", 200),
    ],
)
async def test_a_tag_is_compared_with_all_tags_of_the_client(
    served: RunningService, named: str, status: int
):
    etag = (await get(served)).headers["etag"]
    strong = etag.removeprefix("W/")
    given = named.format(etag, strong=strong, bare=strong.strip('"'))
    assert (await get(served, If_None_Match=given)).status_code == status


async def test_another_version_has_another_tag(served_alone: RunningService):
    before = (await get(served_alone)).headers["etag"]
    await served_alone.market.commit(
        make_batch(LATER, [make_change(LATER, "BTC", "enzo", "1h", 0, 1)])
    )
    after = await get(served_alone, If_None_Match=before)
    assert (after.status_code, after.headers["etag"] == before) == (200, False)


async def test_other_arguments_have_another_tag_and_a_refusal_has_none(served: RunningService):
    tags = {
        (await get(served, f"{STATE}?ticker={ticker}")).headers["etag"]
        for ticker in ("BTC", "ETH", "btc")
    }
    assert len(tags) == 2
    refused = await get(served, f"{STATE}?ticker=nothing", If_None_Match="*")
    assert (refused.status_code, "etag" in refused.headers) == (400, False)


@pytest.mark.parametrize("path", SAME)
async def test_a_long_response_is_compressed_if_the_client_accepts_it(
    served: RunningService, path: str
):
    plain = await get(served, path)
    async with served.client.stream(
        "GET", path, headers=served.key_headers | {"Accept-Encoding": "br, gzip"}
    ) as packed:
        content = b"".join([part async for part in packed.aiter_raw()])
    if len(plain.content) < 1_000:
        assert (content, "content-encoding" in packed.headers) == (plain.content, False)
        return
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) == len(content) < len(plain.content)
    assert gzip.decompress(content) == plain.content
    for name in ("etag", "cache-control", "content-type", "vary"):
        assert packed.headers[name] == plain.headers[name]
    assert plain.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("identity", False),
        ("deflate, br", False),
        ("", False),
    ],
)
async def test_gzip_is_sent_only_if_it_is_accepted(
    served: RunningService, accepted: str, is_packed: bool
):
    answer = await get(served, Accept_Encoding=accepted)
    assert ("content-encoding" in answer.headers) is is_packed
    assert answer.json()["counts"]["assets"] > 0


async def test_usage_is_never_answered_from_a_client_cache(served: RunningService):
    first = await get(served, "/api/v1/usage")
    again = await get(served, "/api/v1/usage", If_None_Match=first.headers["etag"])
    assert again.status_code == 200
    assert again.json()["quota"]["used_today"] == first.json()["quota"]["used_today"] + 1


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


async def read_privacy_section(served: RunningService) -> str:
    text = (await served.client.get("/legal")).text
    return " ".join(text.split("## Privacy")[1].split("## Licence")[0].split())


async def test_the_privacy_section_covers_every_table_about_people(served: RunningService) -> None:
    stored = await read_privacy_section(served)
    path = served.access._engine.path
    names = run_sql(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")
    # The last three have nothing about a person.
    assert {name for (name,) in names} == {
        *PRIVACY_TEXTS,
        *("migrations", "store_id", "sqlite_sequence"),
    }
    assert not [words for words in PRIVACY_TEXTS.values() if words not in stored]


async def test_the_privacy_section_states_how_long_data_is_kept(served: RunningService) -> None:
    stored = await read_privacy_section(served)
    cutoffs = asdict(compute_cutoffs(1000 * DAY_MS))
    assert {name: 1000 - cutoff // DAY_MS for name, cutoff in cutoffs.items()} == {
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


SAMPLE_PAGE = SignalsResponse.model_validate_json(render_sample())
ROWS = SAMPLE_PAGE.signals


@pytest.mark.clause("4.5.1")
async def test_it_is_served_before_the_first_compute(served_empty):
    answers = [await served_empty.client.get("/api/v1/signals/sample") for _ in range(2)]
    assert [(answer.status_code, answer.text) for answer in answers] == [(200, render_sample())] * 2


@pytest.mark.clause("4.5.1", "4.5.3")
async def test_it_does_not_depend_on_live_rows_or_the_time(served_alone):
    served_alone.clock.now += 10**9
    assert (await served_alone.client.get("/api/v1/signals/sample")).text == render_sample()


@pytest.mark.clause("2.3.1", "4.5.2")
async def test_its_shape_is_that_of_a_live_answer(served):
    live = (await served.get_api("/signals?tier=all")).json()
    fixed = json.loads(render_sample())
    assert [*fixed, *fixed["pagination"]] == [*live, *live["pagination"]]
    assert fixed["meta"].keys() <= SignalsMeta.model_fields.keys()
    for row in fixed["signals"]:
        assert list(row) == list(live["signals"][0])


@pytest.mark.clause("4.5.2")
async def test_its_ids_are_built_as_the_live_ones(served):
    row = (await served.get_api("/signals?limit=1")).json()["signals"][0]
    live = re.sub("[0-9]{10}", "EPOCH", row["id"].replace(row["ticker"], "T"))
    assert live == f"universe.T.{row['indicator']}.{row['timeframe']}.EPOCH.1"
    for row in ROWS:
        tier, ticker, indicator, timeframe, close, *action, epoch = row.id.split(".")
        assert (tier, ticker, indicator, timeframe, epoch) == (
            row.tier,
            row.ticker,
            row.indicator,
            row.timeframe,
            "0",
        )
        assert action == ([row.action] if row.action else [])
        assert 180 <= (datetime.fromisoformat(row.created_at).timestamp() - int(close)) < 300
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.clause("4.5.1")
def test_it_shows_every_kind_of_row():
    universe = [row for row in ROWS if row.tier == "universe"]
    alerts = [row for row in ROWS if row.tier == "alerts"]
    assert {row.change_type for row in universe} == {"reversal", "activation", "deactivation"}
    assert {row.direction for row in universe} == {"bullish", "bearish", "neutral"}
    assert {row.action for row in universe} == {None}
    assert {(row.action, row.direction, row.transition, row.change_type) for row in alerts} == {
        ("LONG", "bullish", None, None),
        ("SHORT", "bearish", None, None),
        ("CLOSE", "exit", None, None),
    }
    assert "perpkit" in {row.indicator for row in alerts}
    assert "perpkit" not in {row.indicator for row in universe}


@pytest.mark.clause("4.5.3")
def test_its_rows_are_newest_first_its_page_is_whole_and_its_meta_says_that_it_is_not_live():
    meta = SAMPLE_PAGE.meta
    assert (meta.source, meta.simulated, meta.stale) == ("sample", False, False)
    assert (meta.note, meta.next_update) == ("Fixed documentation rows, not live data.", {})
    times = [row.created_at for row in ROWS]
    assert times == sorted(set(times), reverse=True)
    assert SAMPLE_PAGE.pagination.model_dump() == {
        "limit": 50,
        "offset": 0,
        "returned": len(ROWS),
        "has_more": False,
        "next_cursor": times[0],
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_its_assets_and_indicators_are_those_of_the_universe(row):
    asset = next(a for a in load_universe(None).assets if a.ticker == row.ticker)
    assert row.asset_class == asset.asset_class
    assert row.indicator_name == {i.id: i.name for i in INDICATORS}[row.indicator]
    assert row.tier == "universe" or asset.alerts
