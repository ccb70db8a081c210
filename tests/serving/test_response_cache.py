"""Response bodies build each form once, and the cache stays within its size."""

import json
import zlib
from collections.abc import Iterable

import pytest

from schemas.usage import QuotaUsage
from serving.json_text import escape_json
from serving.response_cache import (
    COPIES_PER_RESPONSE,
    ResponseBody,
    ResponseCache,
)

pytestmark = pytest.mark.clause("fresh")

TEXT = '{"note":"a \\"quoted\\" text, é, \\u2028, \\\\ and\\ttabs"}'.encode()
ALLOWANCE = QuotaUsage(100, 7, 93, "2026-10-01T00:00:00.000Z")


def result_of(members: Iterable[bytes]) -> dict:
    return json.loads(b"{%b}" % b"".join(members))


def test_a_tool_result_has_the_response_as_text_and_as_structure():
    result = result_of(ResponseBody(TEXT).result_members)
    assert result["content"] == [{"type": "text", "text": TEXT.decode()}]
    assert result["structuredContent"] == json.loads(TEXT)
    assert result["isError"] is False


def test_every_character_is_escaped_as_pythons_encoder_does():
    characters = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000, 97)]))
    plain = json.dumps(characters, ensure_ascii=False)
    escaped = escape_json(plain.encode())
    assert f'"{escaped.decode()}"' == json.dumps(plain, ensure_ascii=False)


def test_what_does_not_change_with_the_time_is_built_once():
    answer = ResponseBody(TEXT)
    for form in ("escaped", "etag", "gzip_bytes"):
        assert getattr(answer, form) is getattr(answer, form)


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_the_compressed_form_is_the_whole_text_in_one_member(size: int):
    answer = ResponseBody(json.dumps({"a": "x" * size}).encode())
    # As HTTP clients do, which stop at the end of the first member.
    inflater = zlib.decompressobj(31)
    assert inflater.decompress(answer.gzip_bytes) == answer.text
    assert (inflater.eof, inflater.unused_data) == (True, b"")


def test_exactly_equal_texts_have_equal_tags():
    assert ResponseBody(TEXT).etag == ResponseBody(bytes(TEXT)).etag
    assert ResponseBody(TEXT + b" ").etag != ResponseBody(TEXT).etag


def fill(cache: ResponseCache, sizes: dict[str, int], now: int = 1) -> None:
    for key, size in sizes.items():
        cache.put(key, ResponseBody(b"x" * size), now, 100)


@pytest.mark.parametrize(
    ("sizes", "requested", "kept"),
    [
        ({"a": 40, "b": 40, "c": 40}, "", "bc"),
        ({"a": 40, "b": 40, "c": 40}, "a", "ac"),
        ({"a": 40, "b": 40, "c": 120}, "", ""),
    ],
)
def test_the_responses_requested_longest_ago_are_evicted(
    sizes: dict[str, int], requested: str, kept: str
):
    cache = ResponseCache(max_bytes=100 * COPIES_PER_RESPONSE)
    *early, last = sizes
    fill(cache, {key: sizes[key] for key in early})
    assert requested == "" or cache.get(requested, 1) is not None
    fill(cache, {last: sizes[last]})
    assert "".join(key for key in sizes if cache.get(key, 1) is not None) == kept


def test_a_response_replaces_the_one_with_its_key():
    cache = ResponseCache(max_bytes=100 * COPIES_PER_RESPONSE)
    for _ in range(5):
        fill(cache, {"a": 50})
    fill(cache, {"b": 40})
    assert None not in (cache.get("a", 1), cache.get("b", 1))


def test_long_keys_count_too():
    cache = ResponseCache(max_bytes=1000)
    fill(cache, {"a" * 990: 1, "b" * 990: 1})
    assert (cache.get("a" * 990, 1), cache.get("b" * 990, 1) is None) == (None, False)


def test_all_responses_expire_at_the_same_time():
    cache = ResponseCache()
    fill(cache, {"a": 1}, now=10)
    fill(cache, {"b": 1}, now=50)
    assert [cache.get("a", now) is not None for now in (9, 10, 99, 100)] == [0, 1, 1, 0]
    fill(cache, {"c": 1}, now=200)
    cache.put("d", ResponseBody(b"d"), 200, None)
    # Nothing of the time before is left if the clock is set back.
    assert [cache.get(key, 60) for key in "abcd"] == [None] * 4


def test_a_response_that_took_longer_to_render_leaves_the_others():
    cache = ResponseCache()
    fill(cache, {"a": 1}, now=50)
    fill(cache, {"b": 1}, now=40)
    assert [cache.get(key, 60) is not None for key in "ab"] == [True, True]


def test_a_response_that_never_expires_stays():
    cache = ResponseCache()
    cache.put("a", ResponseBody(b"a"), 10, None)
    assert cache.get("a", 10**15) is not None
