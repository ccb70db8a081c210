"""The files by which programs find the service, over a real socket."""

import io
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zipfile import ZipFile

import httpx
import jsonschema
import pytest

from access.billing.sandbox import NoBilling
from mcp_server.bundle import build_bundle
from mcp_server.dispatcher import INSTRUCTIONS
from mcp_server.server_card import EXAMPLE_PROMPTS, build_ai_catalog, build_server_card
from mcp_server.tools.registry import TOOLS
from rest_shim.manifest import DESCRIPTION
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.version import VERSION
from tests.support.example_market import make_coverage
from tests.support.running_service import RunningService, run_service
from tests.support.running_service import served as served
from web.discovery import DISCOVERY_PATHS, render_llms_text
from web.docs import list_page_links

pytestmark = pytest.mark.clause("install")

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("path", TYPES)
async def test_a_file_is_public_cached_and_revalidated(served: RunningService, path: str) -> None:
    got = await served.client.get(path)
    assert got.status_code == 200
    assert got.headers["content-type"] == TYPES[path]
    assert got.headers["cache-control"] == "public, max-age=3600"
    again = await served.client.get(path, headers={"if-none-match": got.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = await served.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert (await served.client.post(path)).status_code == 405


@pytest.mark.parametrize("path", TYPES)
async def test_a_page_of_any_origin_reads_a_file(served: RunningService, path: str) -> None:
    got = await served.client.get(path, headers={"origin": "https://other.example"})
    assert got.status_code == 200
    assert got.headers["access-control-allow-origin"] == "*"
    assert "ETag" in got.headers["access-control-expose-headers"]
    preflight = {"origin": "https://other.example", "access-control-request-method": "GET"}
    asked = await served.client.options(path, headers=preflight)
    assert asked.status_code == 204
    assert "If-None-Match" in asked.headers["access-control-allow-headers"]


def test_every_path_is_tested() -> None:
    assert set(DISCOVERY_PATHS) == set(TYPES)


async def test_the_endpoint_beside_the_card_is_unchanged(served: RunningService) -> None:
    assert (await served.client.get("/api/v1/mcp")).status_code == 405
    foreign = {"origin": "https://other.example"}
    assert (await served.client.get("/api/v1/mcp", headers=foreign)).status_code == 403
    manifest = (await served.client.get("/api/v1")).text
    assert not any(path in manifest for path in DISCOVERY_PATHS)


async def test_both_cards_are_equal_and_name_the_endpoints(served: RunningService) -> None:
    cards = [(await served.client.get(path)).json() for path in CARD_PATHS]
    assert cards[0] == cards[1] == build_server_card(served.base_url, UNNAMED_OPERATOR)
    oauth, keyed = cards[0]["remotes"]
    assert oauth["url"] == f"{served.base_url}/mcp"
    assert "headers" not in oauth
    assert keyed["url"] == f"{served.base_url}/api/v1/mcp"
    (header,) = keyed["headers"]
    assert set(re.findall(r"\{(\w+)\}", header["value"])) == set(header["variables"])
    assert header["isSecret"] is header["variables"]["api_key"]["isSecret"] is True


async def test_the_card_does_not_contradict_the_server(served: RunningService) -> None:
    card = (await served.client.get(CARD_PATHS[0])).json()
    server = (await served.rpc("initialize"))["result"]["serverInfo"]
    assert card["version"] == server["version"] == VERSION
    assert card["name"].rpartition("/")[2] == server["name"]
    for remote in card["remotes"]:
        versions = remote["supportedProtocolVersions"]
        assert versions == ["2026-07-28", "2025-03-26", "2025-06-18", "2025-11-25"]
        for version in versions[1:]:
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            got = await served.post_mcp(ping, mcp_protocol_version=version)
            assert got.status_code == 200
    # The card tells how to connect; what the server offers is listed by the server.
    assert "tools" not in card
    icon = await served.client.get(urlsplit(card["icons"][0]["src"]).path)
    assert icon.headers["content-type"].startswith(card["icons"][0]["mimeType"])


def test_an_address_that_serves_no_oauth_names_only_the_other_endpoint() -> None:
    base_url = "http://signals.lan:8000"
    (remote,) = build_server_card(base_url, UNNAMED_OPERATOR)["remotes"]
    assert remote["url"] == f"{base_url}/api/v1/mcp"
    assert f"{base_url}/mcp" not in render_llms_text(base_url, sells_keys=True)


def test_the_card_names_the_operator_and_example_prompts() -> None:
    meta = build_server_card("https://signals.example.com", OPERATOR)["_meta"]
    assert meta == {
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
    policies = dict.fromkeys(("termsUrl", "privacyUrl"), "https://signals.example.com/legal")
    assert unnamed["com.example.signals/operator"] == policies


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
    card = build_server_card("https://signals.example.com", operator)
    jsonschema.Draft202012Validator(schema).validate(card)


async def test_every_entry_of_the_catalog_leads_to_a_file_of_its_type(
    served: RunningService,
) -> None:
    catalog = (await served.client.get("/.well-known/ai-catalog.json")).json()
    assert catalog["specVersion"] == "1.0"
    types = []
    for entry in catalog["entries"]:
        assert entry["identifier"].startswith("urn:air:127.0.0.1:")
        got = await served.client.get(entry["url"])
        assert got.status_code == 200
        types.append((entry["type"], got.headers["content-type"].split(";")[0]))
    assert types == [
        ("application/mcp-server-card+json", "application/mcp-server-card+json"),
        ("application/agent-skills+md", "text/markdown"),
    ]
    identifiers = [
        entry["identifier"] for entry in build_ai_catalog("https://a.example", "/x")["entries"]
    ]
    assert identifiers == ["urn:air:a.example:mcp:signals", "urn:air:a.example:skill:signals"]


@pytest.mark.prove
async def test_every_link_of_llms_txt_leads_somewhere(served: RunningService) -> None:
    text = (await served.client.get("/llms.txt")).text
    links = re.findall(r"^- \[[^]]+\]\((\S+?)\): \S", text, re.M)
    assert links
    assert len(links) == len(re.findall(r"^- \[", text, re.M))
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
    assert set(pages) == {link.name for link in list_page_links(sells_keys=True)}


async def test_without_billing_llms_txt_offers_no_sale(tmp_path: Path) -> None:
    async with run_service(tmp_path, make_coverage(), provider=NoBilling()) as unbilled:
        text = (await unbilled.client.get("/llms.txt")).text
    assert text == render_llms_text(unbilled.base_url, sells_keys=False)
    assert "[API keys]" in text
    assert "Buy access" not in text
    assert "/docs/members" not in text


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
