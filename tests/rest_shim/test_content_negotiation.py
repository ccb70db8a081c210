"""Conditional requests get 304, and responses are compressed if the client accepts it."""

import gzip

import pytest

from tests.rest_shim.test_routes import KEYED_PATHS, OPEN_PATHS
from tests.support.example_market import HOUR_MS, NOON, make_batch, make_change
from tests.support.running_service import RunningService
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("answers")

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
    assert "content-type" not in again.headers
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
    later = NOON + HOUR_MS
    await served_alone.market.commit(
        make_batch(later, [make_change(later, "BTC", "enzo", "1h", 0, 1)])
    )
    after = await get(served_alone, If_None_Match=before)
    assert (after.status_code, after.headers["etag"] == before) == (200, False)


async def test_other_arguments_have_another_tag(served: RunningService):
    tags = {
        (await get(served, f"{STATE}?ticker={ticker}")).headers["etag"]
        for ticker in ("BTC", "ETH", "btc")
    }
    assert len(tags) == 2


async def test_a_refusal_has_no_tag_and_answers_no_condition(served: RunningService):
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
