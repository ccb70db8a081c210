"""The reference pages contain all tools, endpoints and fields with their descriptions."""

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from access.billing.sandbox import NoBilling
from mcp_server.registration import CLIENTS
from mcp_server.tools.get_state import GET_STATE
from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import ENDPOINTS
from schemas.errors import ErrorBody
from schemas.vocabulary import INDICATOR_IDS
from service.commands.connect import print_registration
from tests.support.example_market import make_coverage
from tests.support.running_service import RunningService, run_service
from tests.support.shared_service import served as served
from tests.support.web_page import Page
from web.docs_frame import build_frame_values
from web.pages import render_template
from web.reference_pages import ReferenceFacts, build_page_values

pytestmark = pytest.mark.clause("pages")


class Sections(HTMLParser):
    """The text under each h2, one line per paragraph or cell, and its code blocks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {"": ""}
        self.code: dict[str, list[str]] = {"": []}
        self._at, self._is_code = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "h2":
            self._at = str(dict(attrs)["id"])
            self.texts[self._at], self.code[self._at] = "", []
        if tag == "pre":
            self._is_code = True
            self.code[self._at].append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_code = self._is_code and tag != "pre"
        if tag in ("h2", "p", "td", "th"):
            self.texts[self._at] += "\n"

    def handle_data(self, data: str) -> None:
        self.texts[self._at] += data
        if self._is_code:
            self.code[self._at][-1] += data


async def shown(served: RunningService, name: str) -> Sections:
    answer = await served.client.get(f"/docs/{name}")
    assert answer.status_code == 200
    return Sections(answer.text)


async def test_the_tools_page_describes_every_tool_completely(served: RunningService) -> None:
    sections = await shown(served, "tools")
    assert list(sections.texts)[1:] == [tool.name for tool in TOOLS]
    listed = {one["name"]: one for one in (await served.rpc("tools/list"))["result"]["tools"]}
    for tool in TOOLS:
        text, one = sections.texts[tool.name], listed[tool.name]
        assert one["description"] in text
        assert set(one["annotations"]) <= set(words(text))
        assert ("Needs a key." in text) is tool.requires_key
        for name, argument in one["inputSchema"]["properties"].items():
            assert name in text
            assert argument["description"] in text
            assert ", ".join(argument.get("enum", [])) in text
            bounds = [str(argument[key]) for key in ("minimum", "maximum") if key in argument]
            assert " to ".join(bounds) in text
        fields = dict(fields_of(one["outputSchema"]))
        assert fields.keys() <= set(words(text))
        assert set(fields.values()) <= lines(text) | {None}
        call, answer = map(json.loads, sections.code[tool.name])
        assert call["name"] == tool.name
        assert set(answer) <= set(tool.result.model_fields)


def words(text: str) -> list[str]:
    return re.findall(r"[\w/]+", text)


def lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()}


def fields_of(schema: Any) -> Iterator[tuple[str, str | None]]:
    """Yield the name and description of every field of a schema, at any depth."""
    if not isinstance(schema, dict):
        return
    for name, part in schema.get("properties", {}).items():
        yield name, part.get("description") and " ".join(part["description"].split())
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
    for part in (*parts, schema.get("items"), schema.get("additionalProperties")):
        yield from fields_of(part)


async def test_the_rest_page_describes_every_endpoint_completely(served: RunningService) -> None:
    sections = await shown(served, "rest")
    document = (await served.client.get("/api/v1/openapi.json")).json()
    for endpoint in ENDPOINTS:
        text = sections.texts[endpoint.operation_id]
        operation = document["paths"][endpoint.path][endpoint.method.lower()]
        assert text.startswith(f"{endpoint.method} {endpoint.path}\n")
        assert operation["description"] in text
        assert ("Needs a key" in text) is (endpoint.auth == "api_key")
        assert set(operation["responses"]) - {"304"} <= set(words(text))
        for refusal in endpoint.refusals:
            assert refusal.description in text
        named = {parameter["name"] for parameter in operation.get("parameters", [])}
        named |= set(endpoint.body.model_fields) if endpoint.body else set()
        assert all(name in text for name in named)
    error = sections.texts["errors"]
    assert set(ErrorBody.model_fields) <= set(words(error))


async def test_every_command_line_of_the_rest_page_works(served: RunningService) -> None:
    code = (await shown(served, "rest")).code
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET":
            (line,) = code[endpoint.operation_id]
            answer = await as_curl_does(served, line.replace("$SIGNALS_API_KEY", served.api_key))
            # The row of the example is not in this store.
            assert answer.status_code == (400 if endpoint.required else 200)


async def as_curl_does(served: RunningService, line: str) -> httpx.Response:
    """Send the request of a curl command; supports only -H and -d."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    program, *arguments = shlex.split(line.replace("\\\n", ""))
    assert program == "curl"
    given = parser.parse_args(arguments)
    headers = dict(header.split(": ") for header in given.H)
    method = "POST" if given.d else "GET"
    return await served.client.request(method, given.url, headers=headers, content=given.d)


async def test_values_that_are_not_covered_are_not_listed(tmp_path: Path) -> None:
    whole = make_coverage()
    few = whole.model_copy(
        update={
            "assets": tuple(asset for asset in whole.assets if asset.asset_class == "crypto"),
            "indicators": whole.indicators[:2],
        }
    )
    async with run_service(tmp_path, few) as served:
        tools = (await shown(served, "tools")).texts["signals_get_state"].split("\nExample\n")[0]
        rest = (await shown(served, "rest")).texts["signals_get_state"]
        indicators = words((await shown(served, "indicators")).texts[""])
    for text in (tools, rest):
        assert lines(text) >= {"trend_oracle, bayesian_trend", "crypto"}
        listed = set(words(text)) - set(words(GET_STATE.description))
        assert not listed & {*INDICATOR_IDS[2:], "stock", "metal"}
    assert [id_ for id_ in INDICATOR_IDS if id_ in indicators] == list(INDICATOR_IDS[:2])


@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
async def test_the_lines_of_a_client_are_those_of_signals_connect(
    served: RunningService, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (lines,) = (await shown(served, "connect")).code[client.name]
    capsys.readouterr()  # the log of the service
    assert print_registration(client, served.base_url) == 0
    assert lines == capsys.readouterr().out
    assert served.api_key not in lines


async def test_the_connect_page_has_address_links_and_files(served: RunningService) -> None:
    page = Page(await served.client.get("/docs/connect"))
    links = [str(link["href"]) for link in page.find_all("a")]
    for client in CLIENTS:
        assert client.documentation in links
        assert client.tried_with in page.text
        if client.render_link is not None:
            assert client.render_link(served.base_url) in links
    assert {"../signals.mcpb", "../skills/signals/SKILL.md", "../llms.txt"} <= set(links)
    sections = await shown(served, "connect")
    assert sections.code["sign-in"] == [f"{served.base_url}/mcp\n"]


def test_without_oauth_the_connect_page_has_only_registrations_with_a_key() -> None:
    facts = ReferenceFacts("http://signals.lan:8000", None, "test", 10)
    template, values = build_page_values("connect", facts)
    frame = build_frame_values("connect", sells_keys=True)
    text = render_template(template, "../", **frame | values)
    code = Sections(text).code
    assert "sign-in" not in code
    assert not {client.name for client in CLIENTS if client.signs_in} & set(code)
    assert "http://signals.lan:8000/mcp\n" not in text


@pytest.mark.clause("5.10")
async def test_the_calls_of_the_buy_page_buy_a_key(served: RunningService) -> None:
    sections = await shown(served, "buy")
    assert "nothing is charged" in sections.texts[""]
    assert "USD 129" in sections.texts[""]
    assert "USD 1,199" in sections.texts[""]
    checkout, claim = sections.code["steps"]
    begun = (await as_curl_does(served, checkout)).json()
    await served.client.post(begun["checkout_url"], content="action=pay")
    answer = await as_curl_does(served, claim.replace("ct_...", begun["claim_token"]))
    assert answer.json()["status"] == "active"


async def test_without_billing_the_buy_page_says_that_the_operator_creates_keys(
    tmp_path: Path,
) -> None:
    async with run_service(tmp_path, make_coverage(), provider=NoBilling()) as served:
        sections = await shown(served, "buy")
    assert "signals keys create" in sections.texts[""]
    assert "USD" not in sections.texts[""]
    assert list(sections.texts) == [""]


async def test_texts_of_the_coverage_are_escaped(tmp_path: Path) -> None:
    whole = make_coverage()
    hostile = whole.indicators[0].model_copy(update={"note": "<script>alert(1)</script>"})
    published = whole.model_copy(update={"indicators": (hostile, *whole.indicators[1:])})
    async with run_service(tmp_path, published) as served:
        answer = await served.client.get("/docs/indicators")
    assert "&lt;script&gt;alert(1)" in answer.text
    assert "<script>" not in answer.text


def test_a_base_url_is_escaped_and_quoted() -> None:
    facts = ReferenceFacts("http://x.example/a b'<i>", None, "test", 10)
    template, values = build_page_values("buy", facts)
    frame = build_frame_values("buy", sells_keys=True)
    text = render_template(template, "../", **frame | values)
    assert "<i>" not in text
    assert shlex.split(Sections(text).code["steps"][0])[1].startswith("http://x.example/a b'<i>/")
