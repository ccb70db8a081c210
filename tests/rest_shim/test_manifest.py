import json
import re
from datetime import date
from pathlib import Path

import pytest
import pytest_asyncio

from access.billing.provider import NoBilling, describe_purchase
from mcp_server.tools.tool_table import TOOLS
from rest_shim.manifest import build_manifest
from tests.support.example_market import make_coverage
from tests.support.openapi_document import fetch_document
from tests.support.running_service import fetch, run_service, served as served

pytestmark = pytest.mark.clause("documents")

FIELDS = [
    "name",
    "api_version",
    "description",
    "disclaimer",
    "source",
    "simulated",
    "endpoints",
    "auth",
    "mcp",
    "how_to_buy",
    "coverage",
    "polling",
    "limits",
    "log",
    "versioning",
    "legal",
    "changelog",
    "docs",
    "openapi",
    "reference",
]
HEADINGS = [
    "Nature of the readings",
    "Terms of use",
    "Redistribution",
    "Service level",
    "Privacy",
    "Licence of the software",
    "Operator",
]


async def served_manifest(service):
    return (await fetch(service.client, "GET", "/api/v1", 200)).json()


@pytest_asyncio.fixture(loop_scope="session")
async def shown(served):
    return await served_manifest(served)


def texts(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for part in value for text in texts(part)]
    return [value] if isinstance(value, str) else []


@pytest.mark.clause("4.1.3")
async def test_it_lists_exactly_the_operations_of_the_openapi_document(served):
    shown = (await served_manifest(served))["endpoints"]
    document = await fetch_document(served)
    assert [(e["method"], e["path"], e["summary"]) for e in shown] == [
        (method, path, operation["summary"]) for method, path, operation in document.operations()
    ]
    for endpoint in shown:
        security = document.operation(endpoint["method"], endpoint["path"])["security"]
        assert endpoint["auth"] == ("api_key" if {"bearer": []} in security else "none")
        assert endpoint["url"] == served.base_url + endpoint["path"]


@pytest.mark.clause("4.1.1")
async def test_it_describes_the_api(shown):
    assert (shown["name"], shown["api_version"]) == ("signals", "v1")
    for said in (
        *("seven trading indicators", "crypto, stocks and metals", "1h, 4h and 1d"),
        *("current state", "feed of every change", "recent flips", "agreement"),
    ):
        assert said in shown["description"]


@pytest.mark.clause("4.1.2")
async def test_a_key_sent_as_described_is_accepted(served):
    auth = (await served_manifest(served))["auth"]
    assert auth["scheme"] == "Bearer"
    assert served.api_key.startswith(auth["key_prefix"])
    for template in (auth["header"], auth["alternative_header"]):
        name, _, value = template.replace("<API_KEY>", served.api_key).partition(": ")
        response = await served.client.get("/api/v1/usage", headers={name: value})
        assert (response.status_code, response.json()["key"]) == (200, {"label": "tests"})


@pytest.mark.clause("4.1.6", "4.7.19", "4.7.22", "6.8", "6.9")
async def test_polling_as_described_returns_only_new_rows(served):
    polling = (await served_manifest(served))["polling"]
    assert polling["recommended_interval_s"] == 900
    newest = (await served.get_api("/signals")).json()["pagination"]["next_cursor"]
    for cursor, rows in ((newest, 0), ("2026-09-30T12:03:00.003Z", 2)):
        method, address = polling["call"].replace("<next_cursor>", cursor).split()
        response = await served.client.request(method, address, headers=served.key_headers)
        assert (response.status_code, response.json()["pagination"]["returned"]) == (200, rows)
    reported = " ".join(polling["how"])
    for said in (
        *("keep the old since", "next_cursor", "has_more", "raise offset by limit", "every page"),
        *("shift pages", "overlapping windows", "tier and id", "with /api/v1/state"),
    ):
        assert said in reported


@pytest.mark.clause("1.39")
async def test_every_tool_is_named_with_its_endpoint_and_in_the_mcp_part(shown):
    tools = {tool.name: "api_key" if tool.requires_key else "none" for tool in TOOLS}
    assert {e["tool"]: e["auth"] for e in shown["endpoints"] if e["tool"]} == tools
    assert {tool["name"]: tool["auth"] for tool in shown["mcp"]["tools"]} == tools


@pytest.mark.clause("0.2", "4.1.3")
async def test_every_address_begins_with_the_base_url_and_resolves(served, shown):
    found = {
        address.rstrip(":.,")
        for text in texts(shown)
        for address in re.findall(r"https?://[^\s\"?]+", text)
    }
    served_at = {endpoint["url"]: endpoint["method"] for endpoint in shown["endpoints"]}
    assert found == {*served_at, shown["reference"]}
    for address in found:
        response = await served.client.request(served_at.get(address, "GET"), address)
        assert response.status_code in {200, 400, 401}


@pytest.mark.clause("4.1.5")
async def test_the_numbers_of_coverage_are_counted_from_published_coverage(served):
    shown = (await served_manifest(served))["coverage"]
    assert (shown["assets"], shown["timeframes"], len(shown["indicators"])) == (
        {"total": 5, "crypto": 3, "stock": 1, "metal": 1},
        ["1h", "4h", "1d"],
        7,
    )
    universe, alerts = shown["tiers"]["universe"], shown["tiers"]["alerts"]
    assert (universe["assets"], alerts["assets"]) == (4, 0)
    assert set(shown["indicators"]) - set(universe["indicators"]) == {"perpkit"}


@pytest.mark.clause("4.1.5", "4.2.3")
async def test_it_agrees_with_the_catalog(served):
    shown = (await served_manifest(served))["coverage"]
    catalog = (await served.client.get(shown["catalog"])).json()
    tiers = catalog["tiers"]
    assert shown["assets"]["total"] == catalog["assets"]["total"]
    assert shown["indicators"] == [indicator["id"] for indicator in catalog["indicators"]]
    tiers["alerts"]["assets"] = len(tiers["alerts"]["tickers"])
    assert shown["tiers"] == {
        name: {part: tiers[name][part] for part in ("assets", "timeframes", "indicators")}
        for name in ("universe", "alerts")
    }


def test_an_asset_with_alerts_is_counted_in_their_tier():
    published = make_coverage()
    followed = published.assets[1].model_copy(update={"alerts": ("4h", "1d")})
    made = build_manifest("http://h", published.model_copy(update={"assets": (followed,)}))
    assert made.coverage.tiers.alerts.model_dump() == {
        "assets": 1,
        "timeframes": ["4h", "1d"],
        "indicators": [indicator.id for indicator in published.indicators],
    }


@pytest.mark.clause("4.1.9")
async def test_before_coverage_is_published_only_the_numbers_are_missing(served_empty):
    shown = await served_manifest(served_empty)
    assert (list(shown), shown["source"], shown["simulated"]) == (FIELDS, None, False)
    numbers = dict(shown["coverage"])
    assert (numbers.pop("catalog"), len(numbers), set(numbers.values())) == (
        f"{served_empty.base_url}/api/v1/catalog",
        4,
        {None},
    )


@pytest.mark.clause("4.1.9")
async def test_it_follows_the_published_coverage(served_alone):
    shown = await served_manifest(served_alone)
    assert (list(shown), shown["source"], shown["simulated"]) == (FIELDS, "simulated", True)
    await served_alone.market.publish_coverage(make_coverage("live"))
    shown = await served_manifest(served_alone)
    assert (shown["source"], shown["simulated"]) == ("live", False)


@pytest.mark.clause("4.1.4")
async def test_it_describes_the_purchase_like_a_refused_key_does(served, shown):
    assert (
        shown["how_to_buy"]
        == (await served.client.get("/api/v1/state")).json()["how_to_get_access"]
        == describe_purchase(served.base_url).model_dump()
    )


def test_its_registration_equals_that_of_the_repository():
    made = build_manifest("http://127.0.0.1:8000", None).mcp
    assert made.config == json.loads(Path("mcp.json").read_text())
    assert made.registration in Path("README.md").read_text()


@pytest.mark.clause("6.8", "8.1", "8.45")
def test_the_limits_equal_those_of_the_contract():
    limits = build_manifest("http://h", None).limits.model_dump()
    assert limits.pop("note")
    assert limits == {
        "daily_quota": 10_000,
        "quota_resets": "00:00 UTC",
        "page_size": {"default": 50, "max": 200},
        "retention_days": {"universe": 365, "alerts": 90},
    }


@pytest.mark.clause("8.1")
async def test_the_limit_of_this_deployment_is_stated_with_the_calls_that_count(tmp_path):
    async with run_service(tmp_path, daily_limit=1234) as served_alone:
        limits = (await served_manifest(served_alone))["limits"]
    assert limits["daily_quota"] == 1234
    for said in ("1,234 per UTC day", "REST and MCP", "401", "403", "429"):
        assert said in limits["note"]


@pytest.mark.clause("1.37")
@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (None, "sells no keys"),
        ("test", "nothing is charged"),
        ("live", "without approval"),
    ],
)
def test_the_note_on_purchases_depends_on_the_mode(mode, said):
    assert said in build_manifest("http://h", None, mode).auth.note


async def test_the_mode_equals_that_of_billing(served_alone, tmp_path):
    assert "nothing is charged" in (await served_manifest(served_alone))["auth"]["note"]
    folder = tmp_path / "off"
    folder.mkdir()
    async with run_service(folder, provider=NoBilling()) as unbilled:
        assert "sells no keys" in (await served_manifest(unbilled))["auth"]["note"]


def test_each_status_of_a_refused_key_is_described():
    statuses = build_manifest("http://h", None).auth.statuses
    assert list(statuses) == ["401", "403", "429"]
    for status, word in (("401", "invalid"), ("403", "Revoked"), ("429", "00:00 UTC")):
        assert word in statuses[status]


@pytest.mark.clause("4.1.8", "9.4", "9.5", "9.6", "9.7", "9.20")
def test_the_changelog_has_the_two_days_of_the_contract_newest_first():
    entries = build_manifest("http://h", None).changelog
    # The entry that removed something is not additive.
    days = [(entry.date, entry.additive) for entry in entries]
    assert days == [(date(2026, 9, 27), False), (date(2026, 9, 25), True)]


@pytest.mark.clause("9.8", "9.9", "9.10", "9.11", "9.12", "9.13", "9.14", "9.15", "9.16", "9.17")
@pytest.mark.parametrize(
    ("day", "reported"),
    [
        (date(2026, 9, 27), "One asset was removed from coverage"),
        (date(2026, 9, 27), "because its readings had stopped updating"),
        (date(2026, 9, 27), "its coin continues under a ticker that was already covered"),
        (date(2026, 9, 27), "/state still has the last readings"),
        (date(2026, 9, 25), "Added GET /api/v1/flips and its MCP tool"),
        (date(2026, 9, 25), "Added change_type to universe rows"),
        (date(2026, 9, 25), "Added mode to checkout, claim and usage responses"),
        (date(2026, 9, 25), "indicator status and appears_in, indicator_statuses, "),
        (date(2026, 9, 25), "legacy_indicator_keys, state_indicators and state_readings of "),
        (date(2026, 9, 25), "coverage by asset"),
        (date(2026, 9, 25), "perpkit in /state and /confluence"),
        (date(2026, 9, 25), "the timing of publication"),
        (date(2026, 9, 25), "the cooldown of alerts and the meaning of CLOSE"),
    ],
)
def test_the_changelog_has_the_entries_of_the_contract(day, reported):
    (entry,) = (entry for entry in build_manifest("http://h", None).changelog if entry.date == day)
    assert reported in " ".join(entry.changes)


@pytest.mark.clause("9.1", "9.20")
async def test_every_path_begins_with_the_version(shown):
    assert shown["api_version"] == shown["versioning"]["api_version"] == "v1"
    assert "Fields and endpoints may be added to v1" in shown["versioning"]["policy"]
    paths = [endpoint["path"] for endpoint in shown["endpoints"]]
    assert [path for path in paths if not f"{path}/".startswith("/api/v1/")] == ["/legal"]


@pytest.mark.clause("1.3", "1.44", "1.45", "1.46")
async def test_the_legal_part_summarizes_the_terms(served_alone):
    legal = (await served_manifest(served_alone))["legal"]
    assert legal["disclaimer"] == "Informational indicator readings, not investment advice."
    assert legal["service_level"] == "No formal uptime SLA and no status page."
    assert "separate written agreement" in legal["redistribution"]
    requested = await served_alone.client.post(
        legal["redistribution_request"], json={"contact_email": "agent@example.com"}
    )
    assert (requested.status_code, requested.json()["status"]) == (201, "received")


@pytest.mark.clause("1.3", "1.44", "1.45", "1.46", "4.1.7", "8.49")
@pytest.mark.parametrize("part", ["terms", "privacy"])
async def test_the_terms_are_a_page_that_is_served(served, part):
    response = await served.client.get((await served_manifest(served))["legal"][part])
    assert response.headers["content-type"] == "text/markdown; charset=utf-8"
    assert re.findall(r"(?m)^## (.*)$", response.text) == HEADINGS
    for said in (
        "not investment advice",
        "no formal uptime SLA and no status page",
        "written agreement",
    ):
        assert said in " ".join(response.text.split())
    stored = response.text.split("## Privacy")[1]
    for what in (
        *("SHA-256", "label", "calls", "e-mail", "plan", "processor's ids", "at most a day"),
        *("the sign-in link", "your session", "cookie", "mail server"),
    ):
        assert what in stored
