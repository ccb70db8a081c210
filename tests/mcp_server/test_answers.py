"""Answers as bytes: each form is made once, and what is kept fits into a number of bytes."""

import gzip
import json

import pytest

from schemas.usage import Allowance, Quota, UsageKey, UsageMeta, UsageResponse
from serving.response_cache import FORMS, Answer, KeptAnswers, QuotaTemplate, Rendered

pytestmark = pytest.mark.clause("fresh")

TEXT = '{"note":"a \\"quoted\\" text, é, \\u2028, \\\\ and\\ttabs"}'.encode()
ALLOWANCE = Allowance(100, 7, 93, "2026-10-01T00:00:00.000Z")


def result_of(members: bytes) -> dict:
    return json.loads(b"{%b}" % members)


def test_a_tool_result_carries_the_text_as_text_and_as_structure():
    result = result_of(Answer(TEXT).result)
    assert result["content"] == [{"type": "text", "text": TEXT.decode()}]
    assert result["structuredContent"] == json.loads(TEXT)
    assert result["isError"] is False


def test_each_form_of_an_answer_is_made_once():
    answer = Answer(TEXT)
    for form in ("result", "refusal", "etag", "gzipped"):
        assert getattr(answer, form) is getattr(answer, form)
    assert gzip.decompress(answer.gzipped) == TEXT


def test_equal_texts_have_equal_tags_on_every_machine_and_others_have_not():
    assert Answer(TEXT).etag == Answer(bytes(TEXT)).etag
    assert Answer(TEXT + b" ").etag != Answer(TEXT).etag


@pytest.mark.parametrize("label", ["mine", None, '"quota":null', '\\"quota\\":null, é'])
def test_a_template_makes_what_its_model_would(label: str | None):
    meta = UsageMeta(
        source=None, simulated=False, nothing_new_before=None, counted='of "what"', note=None
    )
    usage = UsageResponse(key=UsageKey(label=label), mode=None, quota=None, meta=meta)
    template = QuotaTemplate(usage.model_dump_json().encode())
    whole = usage.model_copy(update={"quota": Quota(**ALLOWANCE._asdict())})
    answer = template.answer(ALLOWANCE.text())
    assert answer.text.decode() == whole.model_dump_json()
    assert result_of(answer.result) == result_of(Answer(answer.text).result)


def rendered(size: int) -> Rendered:
    return Rendered(Answer(b"x" * size), begins_at=0, ends_at=None)


def test_the_first_kept_make_room_where_answers_are_too_many():
    kept = KeptAnswers(most_bytes=100 * FORMS)
    for place in ("a", "b", "c"):
        kept.keep(place, rendered(40))
    assert [kept.at(place, 1) is not None for place in ("a", "b", "c")] == [False, True, True]
    kept.keep("d", rendered(101))
    assert [kept.at(place, 1) for place in ("b", "c", "d")] == [None, None, None]


def test_an_answer_kept_anew_takes_the_place_of_the_former():
    kept = KeptAnswers(most_bytes=100 * FORMS)
    for _ in range(5):
        kept.keep("a", rendered(60))
    newest = rendered(40)
    kept.keep("b", newest)
    assert kept.at("a", 1) is not None
    assert kept.at("b", 1) is newest.answer
