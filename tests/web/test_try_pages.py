"""The forms that try a call: fields of the schema, the request they make, errors at fields."""

import json
import shlex

import pytest

from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import ENDPOINTS
from tests.support.browser import BROWSER_TESTS, open_window
from tests.support.running_service import RunningService
from tests.support.shared_service import served as served
from tests.support.web_page import Page, check_page
from web.markdown_files import load_examples

pytestmark = pytest.mark.clause("19.3")


def read_request(page: Page) -> dict[str, str | None]:
    """Return what the script sends."""
    (heading,) = [one for one in page.find_all("h2") if one.get("id") == "request"]
    return heading


def read_names(page: Page) -> set[str | None]:
    fields = [*page.find_all("input"), *page.find_all("select"), *page.find_all("textarea")]
    return {field["name"] for field in fields if str(field.get("id", "")).startswith("field-")}


@pytest.mark.clause("19.5")
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=[one.operation_id for one in ENDPOINTS])
async def test_every_endpoint_has_a_form_with_all_its_fields(served: RunningService, endpoint):
    answer = await served.client.get(f"/docs/try/{endpoint.operation_id}")
    title = f"Try {endpoint.operation_id}"
    page = check_page(answer, 200, title, "public, max-age=60")
    document = (await served.client.get("/api/v1/openapi.json")).json()
    operation = document["paths"][endpoint.path][endpoint.method.lower()]
    expected = {one["name"] for one in operation.get("parameters", [])}
    expected |= set(endpoint.body.model_fields) if endpoint.body else set()
    assert read_names(page) - {"via"} == expected
    assert ("via" in read_names(page)) is (endpoint.tool is not None)
    (form,) = [one for one in page.find_all("form") if one.get("id") == "try"]
    assert form["method"] == ("post" if endpoint.body else "get")
    # The key has no name, so that no form can send it.
    assert ["name" in one for one in page.find_all("input") if one.get("id") == "key"] == (
        [False] if endpoint.auth == "api_key" else []
    )


@pytest.mark.parametrize("tool", TOOLS, ids=[tool.name for tool in TOOLS])
async def test_the_shown_requests_of_a_tool_answer(served: RunningService, tool):
    begun = Page(await served.client.get(f"/docs/try/{tool.name}"))
    arguments = load_examples()[tool.name].arguments
    for via in ("rest", "mcp"):
        sent = {name: str(value) for name, value in arguments.items()} | {"via": via}
        page = Page(await served.client.get(f"/docs/try/{tool.name}", params=sent))
        made = read_request(page)
        if via == "rest":
            assert made["data-address"] == read_request(begun)["data-address"]
        headers = dict(line.split(": ", 1) for line in str(made["data-headers"]).splitlines())
        answer = await served.client.request(
            str(made["data-method"]),
            "/docs/try/" + str(made["data-address"]),
            content=str(made["data-body"]),
            headers=headers | served.key_headers,
        )
        assert answer.status_code == 200
        result = answer.json()
        expected = await served.fetch_answer("rest", tool.name, **arguments)
        shown = result["result"]["structuredContent"] if via == "mcp" else result
        assert shown.keys() == expected.keys()


async def test_the_curl_command_has_the_values_quoted_and_no_key(served: RunningService):
    values = {"ticker": "BTC,ETH", "as_of": "2026-01-01T00:00:00Z' $(x)"}
    answer = await served.client.get("/docs/try/signals_get_state", params=values)
    text = answer.text.partition('<pre id="curl"')[2].partition("</code>")[0]
    line = text.partition("<code>")[2].replace("&#34;", '"').replace("&#39;", "'")
    program, url, option, header = shlex.split(line.replace("&amp;", "&").replace("\\\n", ""))
    assert (program, option) == ("curl", "-H")
    assert url == (
        f"{served.base_url}/api/v1/state?ticker=BTC%2CETH&as_of=2026-01-01T00%3A00%3A00Z%27+%24%28x%29"
    )
    assert header == "Authorization: Bearer $SIGNALS_API_KEY"


@pytest.mark.clause("19.4")
async def test_errors_stand_at_their_fields_and_typed_values_stay(served: RunningService):
    values = {"ticker": "BTCC", "limit": "many", "direction": "up", "via": "mcp"}
    answer = await served.client.get("/docs/try/signals_get_signals", params=values)
    page = check_page(answer, 400, "Try signals_get_signals")
    wrong = {
        one["name"]: one
        for tag in ("input", "select")
        for one in page.find_all(tag)
        if "aria-invalid" in one
    }
    assert set(wrong) == {"ticker", "limit", "direction"}
    errors = {one["id"] for one in page.find_all("p") if one.get("class") == "field-error"}
    assert errors == {"error-ticker", "error-limit", "error-direction"}
    assert all(f"error-{name}" in str(one["aria-describedby"]) for name, one in wrong.items())
    assert "Did you mean BTC" in page.text or "did you mean BTC" in page.text
    assert "an integer from 1 to 200" in page.text
    assert (page.fields["ticker"], page.fields["limit"]) == ("BTCC", "many")
    blank = await served.client.get("/docs/try/signals_get_signals", params={"ticker": " "})
    assert blank.status_code == 200


@pytest.mark.clause("19.4")
async def test_a_body_is_checked_by_post_and_never_read_from_a_url(served: RunningService):
    path = "/docs/try/signals_claim_key"
    token = "ct_" + "a" * 43
    opened = Page(await served.client.get(path, params={"claim_token": token}))
    assert token not in opened.text
    assert opened.fields["claim_token"] == ""
    sent = Page(await served.client.post(path, data={"claim_token": token}))
    assert json.loads(str(read_request(sent)["data-body"])) == {"claim_token": token}
    for text in ("",):
        answer = await served.client.post(path, data={"claim_token": text})
        page = check_page(answer, 400, "Try signals_claim_key")
        assert 'aria-invalid="true"' in answer.text
        assert page.fields["claim_token"] == text
    rpc = {"jsonrpc": "2.0", "id": "7", "method": "tools/list", "params": "[1"}
    bad = await served.client.post("/docs/try/signals_call_mcp", data=rpc)
    assert (bad.status_code, "This is not JSON" in bad.text) == (400, True)
    good = Page(await served.client.post("/docs/try/signals_call_mcp", data=rpc | {"params": "{}"}))
    body = json.loads(str(read_request(good)["data-body"]))
    assert body == {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}}


async def test_an_unknown_call_is_not_found(served: RunningService):
    check_page(await served.client.get("/docs/try/unknown"), 404, "Page not found")


async def test_the_forms_work_before_the_first_run(served_empty: RunningService):
    answer = await served_empty.client.get("/docs/try/signals_get_state", params={"ticker": "X"})
    assert answer.status_code == 200


@pytest.mark.clause("19.5")
class TestInABrowser:
    pytestmark = BROWSER_TESTS

    async def test_a_call_is_sent_with_the_key_and_shown(self, served: RunningService) -> None:
        async with open_window(1440) as window:
            page, sent = window.page, []
            page.on("request", lambda request: sent.append(request))
            await page.goto(f"{served.base_url}/docs/try/signals_get_usage")
            await page.fill("#key", served.api_key)
            for via in ("rest", "mcp"):
                await page.select_option("#field-via", via)
                await page.click("#send")
                await page.wait_for_function(
                    "text => document.querySelector('#body code').textContent.includes(text)",
                    arg='"structuredContent"' if via == "mcp" else '"used_today": 1',
                )
                assert (await page.inner_text("#outcome")).startswith("200 OK · ")
            assert all(served.api_key not in request.url for request in sent)
            await page.reload()
            assert await page.input_value("#key") == served.api_key
            await window.check_fits()
            await window.check_accessible()
            assert window.complaints == []

    async def test_a_bad_value_is_not_sent(self, served: RunningService) -> None:
        async with open_window(390) as window:
            page, sent = window.page, []
            page.on("request", lambda request: sent.append(request.url))
            await page.goto(f"{served.base_url}/docs/try/signals_get_signals")
            await page.fill("#field-limit", "many")
            await page.click("#send")
            await page.wait_for_selector("#error-limit")
            assert await page.evaluate("document.activeElement.name") == "limit"
            assert not [url for url in sent if "/api/v1/signals?" in url]
            await window.check_fits()
