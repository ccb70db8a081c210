"""Response bodies build each form once, and the cache stays within its size."""

import gzip
import json
import zlib
from collections.abc import Iterable

import pytest

from schemas.result import UNSENT
from schemas.usage import Quota, QuotaUsage, UsageKey, UsageMeta, UsageResponse
from serving.json_text import JsonText
from serving.response_cache import (
    COPIES_PER_RESPONSE,
    CacheEntry,
    QuotaTemplate,
    ResponseBody,
    ResponseCache,
    SentResponse,
)

pytestmark = pytest.mark.clause("fresh")

TEXT = '{"note":"a \\"quoted\\" text, é, \\u2028, \\\\ and\\ttabs"}'.encode()
ALLOWANCE = QuotaUsage(100, 7, 93, "2026-10-01T00:00:00.000Z")


def result_of(members: Iterable[bytes]) -> dict:
    return json.loads(b"{%b}" % b"".join(members))


def test_a_tool_result_has_the_response_as_text_and_as_structure():
    result = result_of(SentResponse(ResponseBody(TEXT)).result_members)
    assert result["content"] == [{"type": "text", "text": TEXT.decode()}]
    assert result["structuredContent"] == json.loads(TEXT)
    assert result["isError"] is False


def test_every_character_is_escaped_as_pythons_encoder_does():
    characters = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000, 97)]))
    plain = json.dumps(characters, ensure_ascii=False)
    escaped = JsonText.escape(plain.encode()).escaped
    assert f'"{escaped.decode()}"' == json.dumps(plain, ensure_ascii=False)


def test_what_does_not_change_with_the_time_is_built_once():
    answer = ResponseBody(TEXT)
    for form in ("json", "pieces", "escaped_pieces", "etag", "compressed_pieces"):
        assert getattr(answer, form) is getattr(answer, form)


@pytest.mark.clause("2.13.14")
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_every_form_has_the_time_at_which_the_response_is_sent(size: int):
    label = '"now":"0000-00-00T00:00:00.000Z" é'
    value = {"a": "x" * size, "label": label, "meta": {"now": UNSENT, "note": None}}
    answer = ResponseBody(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    for now in ("2026-09-30T12:06:20.000Z", "2026-09-30T12:06:20.001Z"):
        sent = SentResponse(answer, now.encode())
        expected = value | {"meta": {"now": now, "note": None}}
        assert json.loads(sent.text) == expected
        assert gzip.decompress(sent.gzip_bytes) == sent.text
        # As HTTP clients do, which stop at the end of the first member.
        inflater = zlib.decompressobj(31)
        assert inflater.decompress(sent.gzip_bytes) == sent.text
        assert (inflater.eof, inflater.unused_data) == (True, b"")
        result = result_of(sent.result_members)
        assert result["structuredContent"] == expected
        assert result["content"][0]["text"] == sent.text.decode()


def test_a_text_without_a_time_is_sent_unchanged():
    sent = SentResponse(ResponseBody(TEXT))
    assert sent.text == gzip.decompress(sent.gzip_bytes) == TEXT


def test_exactly_equal_texts_have_equal_tags():
    assert ResponseBody(TEXT).etag == ResponseBody(bytes(TEXT)).etag
    assert ResponseBody(TEXT + b" ").etag != ResponseBody(TEXT).etag


@pytest.mark.parametrize("label", ["mine", None, "100 %b", '"quota":null', '\\"quota\\":null, é'])
def test_a_template_renders_the_same_as_its_model(label: str | None):
    meta = UsageMeta(
        source=None,
        simulated=False,
        now="2026-10-01T00:00:00.000Z",
        nothing_new_before=None,
        counted='of "what"',
        note=None,
    )
    usage = UsageResponse(key=UsageKey(label=label), mode=None, quota=None, meta=meta)
    template = QuotaTemplate(usage.model_dump_json().encode())
    whole = usage.model_copy(update={"quota": Quota(**ALLOWANCE._asdict())})
    answer = template.render(ALLOWANCE.to_json())
    assert answer.text.decode() == whole.model_dump_json()
    sent = SentResponse(ResponseBody(answer.text))
    assert result_of(SentResponse(answer).result_members) == result_of(sent.result_members)


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
