"""Response bodies build each form once, and the cache stays within its size."""

import json
import zlib
from collections.abc import Iterable

import pytest

from mcp_server.tools.get_usage import build_template
from schemas.usage import Quota, QuotaUsage, UsageResponse
from serving.json_text import escape_json
from serving.response_cache import (
    COPIES_PER_RESPONSE,
    CacheEntry,
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


@pytest.mark.parametrize("label", ["mine", None, "100 %b", '"quota":null', '\\"quota\\":null, é'])
def test_a_template_of_usage_renders_the_same_as_its_model(label: str | None):
    template = build_template(label, "test", "simulated", None, 100)
    text = template % ALLOWANCE.to_json().encode()
    usage = UsageResponse.model_validate_json(text)
    assert (usage.key.label, usage.quota) == (label, Quota(**ALLOWANCE._asdict()))
    assert text.decode() == usage.model_dump_json()


def rendered(size: int) -> CacheEntry:
    return CacheEntry(ResponseBody(b"x" * size), valid_from=0, valid_until=None)


def test_the_oldest_responses_are_evicted_first():
    kept = ResponseCache(max_bytes=100 * COPIES_PER_RESPONSE)
    for place in ("a", "b", "c"):
        kept.put(place, rendered(40))
    assert [kept.get(place, 1) is not None for place in ("a", "b", "c")] == [False, True, True]
    kept.put("d", rendered(101))
    assert [kept.get(place, 1) for place in ("b", "c", "d")] == [None, None, None]


def test_a_response_replaces_the_one_with_its_key():
    kept = ResponseCache(max_bytes=100 * COPIES_PER_RESPONSE)
    for _ in range(5):
        kept.put("a", rendered(60))
    newest = rendered(40)
    kept.put("b", newest)
    assert kept.get("a", 1) is not None
    assert kept.get("b", 1) is newest.response
