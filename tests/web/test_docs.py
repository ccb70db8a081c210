"""The documentation: public, without dead links, and true of tools, clients and coverage.

The files by which programs find the service, over a real socket.
"""

import argparse
import io
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urldefrag, urljoin, urlsplit
from zipfile import ZipFile

import httpx
import jsonschema
import pytest

from access.billing.provider import NoBilling
from mcp_server.bundle import build_bundle
from mcp_server.dispatcher import INSTRUCTIONS
from mcp_server.registration import CLIENTS
from mcp_server.server_card import EXAMPLE_PROMPTS, build_ai_catalog, build_server_card
from mcp_server.tools.get_state import GET_STATE
from mcp_server.tools.tool_table import TOOLS
from rest_shim.endpoints import ENDPOINTS
from rest_shim.manifest import DESCRIPTION
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.version import VERSION
from schemas.vocabulary import INDICATOR_IDS
from service.commands.cli import print_registration
from serving.context import Context
from tests.support.example_market import make_coverage
from tests.support.running_service import RunningService, fetch, run_service, served as served
from tests.support.web_page import MAX_BYTES, Page, check_page
from web.discovery import DISCOVERY_PATHS, render_llms_text
from web.docs import (
    OPERATORS,
    PAGE_ORDER,
    PAGES_BY_READER,
    build_call_anchor,
    build_frame_values,
    build_page,
    list_page_links,
)
from web.pages import render_template

pytestmark = pytest.mark.clause("pages", "install")

ROOT = Path(__file__).parents[2]
# Links that install the server open a host on the reader's machine.
INSTALL_SCHEMES = ("cursor://", "vscode:mcp/", "lmstudio://", "goose://")
TITLES = {link.name: link.title for link in list_page_links(sells_keys=True)}
A_MINUTE = "public, max-age=60"
# `connect` is generated with the server's own address, the others are for developers.
NO_PAGES = {"README", "architecture", "connect", "decisions", "glossary", "performance"}


@pytest.mark.parametrize("name", ["", *TITLES])
async def test_a_page_is_public_short_and_cached_for_a_minute(
    served: RunningService, name: str
) -> None:
    path = f"/docs/{name}".removesuffix("/")
    answer = await served.client.get(path)
    page = check_page(answer, 200, TITLES.get(name, "Documentation"), cache=A_MINUTE)
    metas = {meta["name"]: meta.get("content") for meta in page.find_all("meta") if "name" in meta}
    assert "robots" not in metas
    assert 30 < len(str(metas["description"])) < 200
    size = len(answer.content)
    for link in (*page.find_all("link"), *page.find_all("script")):
        asset = await fetch(
            served.client, "GET", urljoin(path, str(link.get("href") or link.get("src"))), 200
        )
        size += 0 if "rapidoc" in str(link) else len(asset.content)
    assert size < MAX_BYTES


async def test_every_link_and_anchor_leads_somewhere(served: RunningService) -> None:
    asked = ["/docs", "/docs/unknown/below", *(f"/docs/{name}" for name in TITLES)]
    # The viewer opens these by script.
    call_anchors = [build_call_anchor(endpoint)[1:] for endpoint in ENDPOINTS]
    pages = {path: Page(await served.client.get(path)) for path in asked}
    for path in asked:
        links = {*pages[path].links}
        assert len(links) > len(TITLES)
        for link in links:
            target, anchor = urldefrag(urljoin(served.base_url + path, link))
            to = urlsplit(target).path
            if not target.startswith(served.base_url):
                assert target.startswith(("https://", *INSTALL_SCHEMES)), link
            else:
                if to not in pages:
                    answer = await served.client.get(to, follow_redirects=True)
                    assert answer.status_code == 200, link
                    pages[to] = Page(answer)
                assert not anchor or anchor in [*pages[to].ids, *call_anchors], link


async def test_the_index_and_a_missing_page_name_every_page(served: RunningService) -> None:
    there = check_page(await served.client.get("/docs"), 200, "Documentation", cache=A_MINUTE)
    for path in ("/docs/unknown", "/docs/", "/docs/tools/state", "/docs/decisions"):
        missing = check_page(await served.client.get(path), 404, "Page not found")
        assert {"name": "robots", "content": "noindex"} in missing.find_all("meta")
        for page in (there, missing):
            assert all(title in page.text for title in TITLES.values())
    assert (await served.client.head("/docs/tools")).status_code == 200
    assert (await served.client.post("/docs/tools")).status_code == 405


async def test_the_pages_exist_before_the_first_run(served_empty: RunningService) -> None:
    for name in TITLES:
        assert (await served_empty.client.get(f"/docs/{name}")).status_code == 200


def test_every_text_exists_once_and_each_file_of_docs_is_a_page() -> None:
    texts = list((ROOT / "web" / "texts").iterdir())
    homes = {ROOT / "docs", ROOT / "rest_shim"}
    assert [text for text in texts if not text.is_symlink()] == []
    assert {text.resolve(strict=True).parent for text in texts} == homes
    written = {text.stem for text in (ROOT / "docs").glob("*.md")}
    assert written - NO_PAGES <= {text.stem for text in texts}


@pytest.mark.clause("19.1")
@pytest.mark.prove
async def test_every_page_has_the_tree_and_its_neighbours(served: RunningService) -> None:
    assert sorted(link.name for link in list_page_links(sells_keys=True)) == sorted(PAGE_ORDER)
    for place, name in enumerate(PAGE_ORDER):
        page = Page(await served.client.get(f"/docs/{name}"))
        links = page.find_all("a")
        # No page has an anchor twice or a heading without one.
        assert len(page.ids) == len(set(page.ids))
        assert all("id" in heading for heading in (*page.find_all("h2"), *page.find_all("h3")))
        assert {f"../docs/{other}" for other in PAGE_ORDER} <= set(page.links)
        current = [link["href"] for link in links if link.get("aria-current") == "page"]
        assert current == ["../docs", f"../docs/{name}"]
        for rel, at in (("prev", place - 1), ("next", place + 1)):
            expected = [f"../docs/{PAGE_ORDER[at]}"] if 0 <= at < len(PAGE_ORDER) else []
            assert [link["href"] for link in links if link.get("rel") == rel] == expected
        for reader in PAGES_BY_READER:
            assert reader in page.text


@pytest.mark.clause("19.7")
async def test_customers_pages_show_no_records_of_the_project(served: RunningService) -> None:
    for name in set(PAGE_ORDER) - set(PAGES_BY_READER[OPERATORS]):
        text = Page(await served.client.get(f"/docs/{name}")).text
        for internal in ("decisions.md", "clauses.toml", "make prove", "make bench", "tests/"):
            assert internal not in text, (name, internal)


@pytest.mark.clause("19.10")
async def test_a_member_sees_their_navigation_and_no_cache_keeps_it(
    served: RunningService,
) -> None:
    for path in ("/docs", "/docs/tools", "/docs/rest"):
        page = Page(answer := await served.get_page(path, is_member=True))
        assert answer.headers["cache-control"] == "no-store"
        assert [form for form in page.find_all("form") if form.get("method") == "post"]
        assert "sign-out" not in (await served.client.get(path)).text
    assert "Cookie" in (await served.client.get("/docs/tools")).headers["vary"]


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
    return Sections((await fetch(served.client, "GET", f"/docs/{name}", 200)).text)


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
            values = ", ".join(argument.get("enum", []))
            bounds = [str(argument[key]) for key in ("minimum", "maximum") if key in argument]
            described = (name, argument["description"], values, " to ".join(bounds))
            assert [part for part in described if part not in text] == []
        call, answer = map(json.loads, sections.code[tool.name])
        assert call["name"] == tool.name
        assert set(answer) <= set(tool.result.model_fields)


def words(text: str) -> list[str]:
    return re.findall(r"[\w/]+", text)


def lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()}


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


async def test_values_that_are_not_covered_are_not_listed_and_its_texts_are_escaped(
    tmp_path: Path,
) -> None:
    whole = make_coverage()
    hostile = whole.indicators[0].model_copy(update={"note": "<script>alert(1)</script>"})
    few = whole.model_copy(
        update={
            "assets": tuple(asset for asset in whole.assets if asset.asset_class == "crypto"),
            "indicators": (hostile, whole.indicators[1]),
        }
    )
    async with run_service(tmp_path, few) as served:
        tools = (await shown(served, "tools")).texts["signals_get_state"].split("\nExample\n")[0]
        indicators = words((await shown(served, "indicators")).texts[""])
        answer = await served.client.get("/docs/indicators")
    assert "&lt;script&gt;alert(1)" in answer.text
    assert "<script>" not in answer.text
    assert lines(tools) >= {"trend_oracle, bayesian_trend", "crypto"}
    listed = set(words(tools)) - set(words(GET_STATE.description))
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
        if client.link:
            assert client.render_link(served.base_url) in links
    assert {"../signals.mcpb", "../skills/signals/SKILL.md", "../llms.txt"} <= set(links)
    assert (await shown(served, "connect")).code["sign-in"] == [f"{served.base_url}/mcp\n"]


def render(name: str, base_url: str) -> str:
    """Return a page of a deployment with another address."""
    facts = SimpleNamespace(
        base_url=base_url, mode="test", daily_limit=10, operator=UNNAMED_OPERATOR
    )
    template, values = build_page(name, cast(Context, facts), None)
    (link,) = [one for one in list_page_links(sells_keys=True) if one.name == name]
    return render_template(template, "../", **build_frame_values(link, sells_keys=True) | values)


def test_without_oauth_the_connect_page_has_only_registrations_with_a_key() -> None:
    text = render("connect", "http://signals.lan:8000")
    code = Sections(text).code
    assert not {"sign-in", *(client.name for client in CLIENTS if client.signs_in)} & set(code)
    assert "http://signals.lan:8000/mcp\n" not in text


@pytest.mark.clause("5.10")
async def test_the_calls_of_the_buy_page_buy_a_key(served: RunningService) -> None:
    sections = await shown(served, "buy")
    told = ("nothing is charged", "USD 129", "USD 1,199")
    assert [text for text in told if text not in sections.texts[""]] == []
    checkout, claim = sections.code["steps"]
    begun = (await as_curl_does(served, checkout)).json()
    await served.client.post(begun["checkout_url"], content="action=pay")
    answer = await as_curl_does(served, claim.replace("ct_...", begun["claim_token"]))
    assert answer.json()["status"] == "active"


async def test_without_billing_nothing_offers_a_sale_and_the_operator_creates_keys(
    tmp_path: Path,
) -> None:
    async with run_service(tmp_path, make_coverage(), provider=NoBilling()) as served:
        sections = await shown(served, "buy")
        text = (await served.client.get("/llms.txt")).text
    assert list(sections.texts) == [""]
    told = ("signals keys create", "USD")
    assert [part for part in told if part in sections.texts[""]] == ["signals keys create"]
    assert text == render_llms_text(served.base_url, sells_keys=False)
    links = ("[API keys]", "Buy access", "/docs/members")
    assert [part for part in links if part in text] == ["[API keys]"]


def test_a_base_url_is_escaped_and_quoted() -> None:
    text = render("buy", "http://x.example/a b'<i>")
    assert "<i>" not in text
    assert shlex.split(Sections(text).code["steps"][0])[1].startswith("http://x.example/a b'<i>/")


async def test_only_the_viewer_may_have_inline_styles(served: RunningService) -> None:
    policies = {
        name: (await served.client.get(f"/docs/{name}")).headers["content-security-policy"]
        for name in TITLES
    }
    assert {name for name, policy in policies.items() if "unsafe" in policy} == {"rest"}
    parts = dict(part.split(" ", 1) for part in policies["rest"].split("; "))
    assert parts["style-src-attr"] == "'unsafe-inline'"
    assert "unsafe" not in parts["script-src"] + parts["style-src"]
    assert parts["connect-src"] == parts["script-src"] == "'self'"


CARD_PATHS = ("/mcp/server-card", "/api/v1/mcp/server-card")
SCHEMA = (
    "https://raw.githubusercontent.com/modelcontextprotocol/experimental-ext-server-card/main/"
    "schema.json"
)
TYPES = {
    **dict.fromkeys(CARD_PATHS, "application/mcp-server-card+json"),
    "/.well-known/ai-catalog.json": "application/ai-catalog+json",
    "/llms.txt": "text/plain; charset=utf-8",
    "/skills/signals/SKILL.md": "text/markdown; charset=utf-8",
    "/signals.mcpb": "application/octet-stream",
}
OPERATOR = Operator(
    "Example Ltd", "help@signals.example", "https://signals.example/terms", "https://p.example/p"
)


@pytest.mark.parametrize("path", DISCOVERY_PATHS)
async def test_a_file_is_public_cached_and_revalidated_and_read_by_pages_of_any_origin(
    served: RunningService, path: str
) -> None:
    origin = {"origin": "https://other.example"}
    got = await fetch(served.client, "GET", path, 200, headers=origin)
    public = {"cache-control": "public, max-age=3600", "access-control-allow-origin": "*"}
    assert got.headers.items() >= {"content-type": TYPES[path], **public}.items()
    assert "ETag" in got.headers["access-control-expose-headers"]
    again = await served.client.get(path, headers={"if-none-match": got.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await fetch(served.client, "HEAD", path, 200)).content == b""
    assert (await served.client.post(path)).status_code == 405
    preflight = {**origin, "access-control-request-method": "GET"}
    asked = await fetch(served.client, "OPTIONS", path, 204, headers=preflight)
    assert "If-None-Match" in asked.headers["access-control-allow-headers"]


async def test_the_endpoint_beside_the_card_is_unchanged(served: RunningService) -> None:
    assert (await served.client.get("/api/v1/mcp")).status_code == 405
    foreign = {"origin": "https://other.example"}
    await fetch(served.client, "GET", "/api/v1/mcp", 403, headers=foreign)
    manifest = (await served.client.get("/api/v1")).text
    assert not any(path in manifest for path in DISCOVERY_PATHS)


async def test_both_cards_are_equal_and_do_not_contradict_the_server(
    served: RunningService,
) -> None:
    card, other = [(await served.client.get(path)).json() for path in CARD_PATHS]
    assert card == other == build_server_card(served.base_url, UNNAMED_OPERATOR)
    oauth, keyed = card["remotes"]
    assert (oauth["url"], "headers" in oauth) == (f"{served.base_url}/mcp", False)
    assert keyed["url"] == f"{served.base_url}/api/v1/mcp"
    (header,) = keyed["headers"]
    assert set(re.findall(r"\{(\w+)\}", header["value"])) == set(header["variables"])
    assert header["isSecret"] is header["variables"]["api_key"]["isSecret"] is True
    server = (await served.rpc("initialize"))["result"]["serverInfo"]
    assert card["version"] == server["version"] == VERSION
    assert card["name"].rpartition("/")[2] == server["name"]
    for remote in card["remotes"]:
        versions = remote["supportedProtocolVersions"]
        assert versions == ["2026-07-28", "2025-03-26", "2025-06-18", "2025-11-25"]
        for version in versions[1:]:
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            assert (await served.post_mcp(ping, mcp_protocol_version=version)).status_code == 200
    # The card tells how to connect; the server lists the tools.
    assert "tools" not in card
    icon = await served.client.get(urlsplit(card["icons"][0]["src"]).path)
    assert icon.headers["content-type"].startswith(card["icons"][0]["mimeType"])


def test_an_address_that_serves_no_oauth_names_only_the_other_endpoint() -> None:
    base_url = "http://signals.lan:8000"
    (remote,) = build_server_card(base_url, UNNAMED_OPERATOR)["remotes"]
    assert remote["url"] == f"{base_url}/api/v1/mcp"
    assert f"{base_url}/mcp" not in render_llms_text(base_url, sells_keys=True)


def test_the_card_names_the_operator_and_example_prompts() -> None:
    assert build_server_card("https://signals.example.com", OPERATOR)["_meta"] == {
        "com.example.signals/operator": {
            "name": "Example Ltd",
            "contact": "help@signals.example",
            "termsUrl": "https://signals.example/terms",
            "privacyUrl": "https://p.example/p",
        },
        "com.example.signals/examplePrompts": list(EXAMPLE_PROMPTS),
    }
    assert len(EXAMPLE_PROMPTS) == 3
    unnamed = build_server_card("https://signals.example.com", UNNAMED_OPERATOR)["_meta"]
    assert unnamed["com.example.signals/operator"] == dict.fromkeys(
        ("termsUrl", "privacyUrl"), "https://signals.example.com/legal"
    )


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://signals.example.com", "com.example.signals/signals"),
        ("https://Example.com:8443/below", "com.example/signals"),
        ("http://localhost:8000", "localhost/signals"),
        ("http://127.0.0.1:8000", "localhost/signals"),
        ("http://[::1]:8000", "localhost/signals"),
    ],
)
def test_the_name_of_the_server_is_the_reversed_host(base_url: str, name: str) -> None:
    card = build_server_card(base_url, UNNAMED_OPERATOR)
    assert card["name"] == name
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", name)
    assert len(card["description"]) <= 100


@pytest.mark.prove
@pytest.mark.parametrize("operator", [UNNAMED_OPERATOR, OPERATOR])
def test_the_card_is_valid_by_the_published_schema(operator: Operator) -> None:
    try:
        published = httpx.get(SCHEMA)
    except httpx.ConnectError:
        pytest.skip("the published schema cannot be reached from here")
    schema = {**published.raise_for_status().json(), "$ref": "#/$defs/ServerCard"}
    jsonschema.Draft202012Validator(schema).validate(
        build_server_card("https://signals.example.com", operator)
    )


async def test_every_entry_of_the_catalog_leads_to_a_file_of_its_type(
    served: RunningService,
) -> None:
    catalog = (await served.client.get("/.well-known/ai-catalog.json")).json()
    assert catalog["specVersion"] == "1.0"
    types = []
    for entry in catalog["entries"]:
        assert entry["identifier"].startswith("urn:air:127.0.0.1:")
        got = await fetch(served.client, "GET", entry["url"], 200)
        types.append((entry["type"], got.headers["content-type"].split(";")[0]))
    assert types == [
        ("application/mcp-server-card+json", "application/mcp-server-card+json"),
        ("application/agent-skills+md", "text/markdown"),
    ]
    assert [
        entry["identifier"] for entry in build_ai_catalog("https://a.example", "/x")["entries"]
    ] == ["urn:air:a.example:mcp:signals", "urn:air:a.example:skill:signals"]


@pytest.mark.prove
async def test_every_link_of_llms_txt_leads_somewhere(served: RunningService) -> None:
    text = (await served.client.get("/llms.txt")).text
    links = re.findall(r"^- \[[^]]+\]\((\S+?)\): \S", text, re.M)
    assert len(links) == len(re.findall(r"^- \[", text, re.M)) > 0
    for link in links:
        assert link.startswith(served.base_url)
        path, _, anchor = link.removeprefix(served.base_url).partition("#")
        got = await served.client.get(path)
        # The endpoints take POST only, and the first one refuses callers without a key before.
        assert got.status_code == {"/mcp": 401, "/api/v1/mcp": 405}.get(path, 200), link
        assert not anchor or f'id="{anchor}"' in got.text


async def test_llms_txt_has_all_tools_and_pages_in_its_form(served: RunningService) -> None:
    text = (await served.client.get("/llms.txt")).text
    title, summary = text.split("\n\n")[:2]
    assert (title, summary) == ("# Signals", f"> {DESCRIPTION}")
    assert INSTRUCTIONS in text
    assert all(f"- {prompt}\n" in text for prompt in EXAMPLE_PROMPTS)
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)(?:\n\n|\n\Z)", text, re.M | re.S))
    assert list(sections) == ["Connect", "Tools", "Documentation", "Optional"]
    assert re.findall(r"\[(\w+)\]", sections["Tools"]) == [tool.name for tool in TOOLS]
    pages = re.findall(r"/docs/([\w-]+)\)", sections["Documentation"] + sections["Optional"])
    assert set(pages) == TITLES.keys()


async def test_the_skill_and_the_bundle_are_those_of_the_repository(
    served: RunningService,
) -> None:
    skill = await served.client.get("/skills/signals/SKILL.md")
    assert skill.text == (ROOT / "skills" / "signals" / "SKILL.md").read_text()
    bundle = (await served.client.get("/signals.mcpb")).content
    assert bundle == build_bundle(served.base_url)
    with ZipFile(io.BytesIO(bundle)) as archive:
        manifest: dict[str, Any] = json.loads(archive.read("manifest.json"))
        assert archive.testzip() is None
    assert manifest["user_config"]["url"]["default"] == served.base_url
