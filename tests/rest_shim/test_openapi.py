import json
import re
from collections import Counter

import jsonschema
import pytest

from rest_shim.error_catalog import QUOTA_HEADERS
from rest_shim.openapi import build_openapi, render_openapi
from schemas.vocabulary import INDICATOR_IDS
from tests.support.bad_inputs import KEYED_PATHS, LEAVES_PATH, PROOF_PATH
from tests.support.example_market import make_coverage
from tests.support.openapi_document import (
    OpenApiDocument,
    fetch_document,
    list_operations,
    to_documented_path,
)
from tests.support.running_service import fetch, served as served

pytestmark = pytest.mark.clause("documents")


DOCUMENT = OpenApiDocument(build_openapi("http://h", make_coverage()))
KEYED = [f"/api/v1{path}" for path in (*KEYED_PATHS.values(), PROOF_PATH, LEAVES_PATH)]
OPEN = [path for method, path, _ in DOCUMENT.operations() if method == "GET" and path not in KEYED]
SPECIFIED = {
    ("GET", "/api/v1"): {200},
    ("GET", "/api/v1/catalog"): {200},
    ("GET", "/api/v1/openapi.json"): {200},
    ("GET", "/api/v1/stats"): {200, 503},
    ("GET", "/api/v1/signals/sample"): {200},
    ("GET", "/api/v1/state"): {200, 400, 401, 403, 429, 503},
    ("GET", "/api/v1/signals"): {200, 400, 401, 403, 429},
    ("GET", "/api/v1/confluence"): {200, 400, 401, 429},
    ("GET", "/api/v1/flips"): {200, 400, 401, 403, 429},
    ("GET", "/api/v1/usage"): {200, 401},
    ("POST", "/api/v1/access/checkout"): {201, 400, 429, 503},
    ("POST", "/api/v1/access/claim"): {200, 400, 404, 409},
    ("POST", "/api/v1/access-request"): {200, 201, 400, 429},
    ("POST", "/api/v1/mcp"): {200, 202},
}


def parts(value, path=()):
    """Yield every object inside a JSON value with the keys that lead to it."""
    if isinstance(value, dict):
        yield path, value
        for key, part in value.items():
            yield from parts(part, (*path, key))
    if isinstance(value, list):
        for number, part in enumerate(value):
            yield from parts(part, (*path, number))


def schemas(document):
    components = document.content["components"]
    found = {("components", name): schema for name, schema in components["schemas"].items()}
    for place in (document.content["paths"], components["responses"], components["headers"]):
        found |= {path: part["schema"] for path, part in parts(place) if "schema" in part}
    return found


def parameters(document, path):
    return {p["name"]: p for p in document.operation("GET", path).get("parameters", [])}


@pytest.mark.clause("0.2", "1.3", "4.3.1", "6.12", "9.2", "9.3")
def test_it_declares_its_format_and_version():
    content = DOCUMENT.content
    assert (content["openapi"], content["info"]["version"], set(content), content["servers"]) == (
        "3.1.0",
        "1.0.0",
        {"openapi", "info", "servers", "tags", "paths", "components"},
        [{"url": "http://h"}],
    )
    assert set(content["info"]) <= {
        "title",
        "summary",
        "description",
        "termsOfService",
        "contact",
        "license",
        "version",
    }
    assert "not investment advice" in content["info"]["description"]


@pytest.mark.clause("0.2")
async def test_it_is_minified_and_the_same_bytes_every_time(served_alone):
    first, second = [await served_alone.client.get("/api/v1/openapi.json") for _ in range(2)]
    assert first.content == second.content
    assert first.text == json.dumps(first.json(), ensure_ascii=False, separators=(",", ":"))
    assert first.json()["servers"] == [{"url": served_alone.base_url}]
    assert len(first.content) < 110_000


@pytest.mark.clause("4.1.3", "4.3.1")
async def test_it_holds_exactly_the_routes_of_the_app(served_alone):
    document = await fetch_document(served_alone)
    assert {(method, path) for method, path, _ in document.operations()} == {
        (method, to_documented_path(path)) for method, path in list_operations(served_alone)
    }


@pytest.mark.clause("4.3.1")
def test_every_reference_resolves_and_every_component_is_used():
    used = set()
    for _, part in parts(DOCUMENT.content):
        if isinstance(part.get("$ref"), str):
            assert DOCUMENT.find(part["$ref"])
            used.add(part["$ref"])
        mapping = part.get("discriminator", {}).get("mapping", {})
        assert [DOCUMENT.find(reference) for reference in mapping.values()] == [
            DOCUMENT.find(reference["$ref"]) for reference in part.get("oneOf", [])
        ]
    assert used == {
        f"#/components/{kind}/{name}"
        for kind, components in DOCUMENT.content["components"].items()
        if kind != "securitySchemes"
        for name in components
    }


@pytest.mark.clause("4.3.1")
@pytest.mark.prove
def test_every_schema_is_one_of_draft_2020_12():
    found = schemas(DOCUMENT)
    assert len(found) > 100
    for where, schema in found.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema, where


def test_every_default_is_a_value_that_its_schema_takes():
    defaults = [
        part
        for schema in schemas(DOCUMENT).values()
        for path, part in parts(schema)
        if "default" in part and path[-1:] != ("properties",)
    ]
    assert len(defaults) >= 8
    for schema in defaults:
        DOCUMENT.build_validator(schema).validate(schema["default"])


def test_component_names_are_of_the_allowed_letters():
    for components in DOCUMENT.content["components"].values():
        assert not [name for name in components if not name.replace("-", "").isalnum()]


def test_operations_are_named_once_tagged_and_described():
    operations = list(DOCUMENT.operations())
    assert set(Counter(operation["operationId"] for _, _, operation in operations).values()) == {1}
    tags = {tag["name"] for tag in DOCUMENT.content["tags"]}
    assert {tag for _, _, operation in operations for tag in operation["tags"]} == tags
    for _, path, operation in operations:
        assert operation["summary"]
        # A program that imports actions accepts no more.
        assert re.fullmatch(r"[A-Z].{,298}\.", operation["description"])
        assert "{" not in path


def test_every_object_has_only_the_fields_of_its_kind():
    operation_fields = {
        "operationId",
        "tags",
        "summary",
        "description",
        "security",
        "parameters",
        "requestBody",
        "responses",
    }
    for _, _, operation in DOCUMENT.operations():
        assert set(operation) <= operation_fields
        for parameter in operation.get("parameters", []):
            fields = {"name", "in", "required", "schema", "example"}
            assert fields <= set(parameter) <= fields | {"description"}
            assert parameter["in"] in {"query", "header"}
        for response in map(DOCUMENT.resolve, operation["responses"].values()):
            assert response["description"]
            assert set(response) <= {"description", "headers", "content", "links"}


@pytest.mark.clause("4.11.7", "7.9")
@pytest.mark.parametrize(("operation", "statuses"), SPECIFIED.items(), ids=map(" ".join, SPECIFIED))
def test_every_status_of_the_specification_is_listed(operation, statuses):
    assert statuses <= {int(status) for status in DOCUMENT.operation(*operation)["responses"]}


def test_every_error_is_the_error_object_except_for_protocol_errors():
    for method, path, operation in DOCUMENT.operations():
        for status in operation["responses"]:
            if int(status) >= 400:
                response = DOCUMENT.response(method, path, int(status))
                schema = response["content"]["application/json"]["schema"]
                is_rpc = path == "/api/v1/mcp" and status in ("400", "404")
                name = "RpcFailure" if is_rpc else "ErrorBody"
                assert f"#/components/schemas/{name}" in json.dumps(schema)


@pytest.mark.parametrize("path", KEYED)
def test_keyed_reads_accept_either_scheme_and_have_quota_headers(path):
    assert DOCUMENT.operation("GET", path)["security"] == [{"bearer": []}, {"apiKey": []}]
    for status in (200, 400, 403, 429, 500, 503):
        assert set(QUOTA_HEADERS) <= set(DOCUMENT.response("GET", path, status)["headers"])
    assert set(DOCUMENT.response("GET", path, 401)["headers"]) == {"WWW-Authenticate"}
    for status in (429, 500, 503):
        assert "Retry-After" in DOCUMENT.response("GET", path, status)["headers"]


def test_all_headers_except_the_quota_are_required():
    held = DOCUMENT.content["components"]["headers"]
    assert {name for name in held if not held[name]["required"]} == set(QUOTA_HEADERS)


def test_only_results_of_the_mcp_endpoint_have_quota_headers():
    assert {
        status
        for status, response in DOCUMENT.operation("POST", "/api/v1/mcp")["responses"].items()
        if set(QUOTA_HEADERS) <= set(DOCUMENT.resolve(response).get("headers", {}))
    } == {"200"}


@pytest.mark.parametrize("path", OPEN)
def test_open_reads_need_no_key_and_have_no_quota_headers(path):
    operation = DOCUMENT.operation("GET", path)
    assert operation["security"] == []
    own = ["ticker", "view"] if path == "/api/v1/catalog" else []
    assert [parameter["name"] for parameter in operation.get("parameters", [])] == own
    for status in operation["responses"]:
        held = DOCUMENT.response("GET", path, int(status)).get("headers", {})
        assert not set(held) & set(QUOTA_HEADERS)


def test_the_schemes_equal_those_of_the_contract():
    schemes = DOCUMENT.content["components"]["securitySchemes"]
    assert (schemes["bearer"]["type"], schemes["bearer"]["scheme"]) == ("http", "bearer")
    key = schemes["apiKey"]
    assert (key["type"], key["in"], key["name"]) == ("apiKey", "header", "X-Api-Key")
    assert {} in DOCUMENT.operation("POST", "/api/v1/mcp")["security"]


@pytest.mark.clause("4.11.12")
def test_the_checkout_says_to_store_the_token_before_paying():
    described = DOCUMENT.operation("POST", "/api/v1/access/checkout")["description"]
    assert "cannot be recovered: store it before opening checkout_url" in described


@pytest.mark.clause(
    "4.7.1",
    "4.7.12",
    "4.7.13",
    "4.8.5",
    "4.8.6",
    "4.9.4",
    "4.9.5",
    "8.16",
    "8.17",
    "8.18",
    "8.22",
    "8.23",
    "8.24",
    "8.25",
    "8.26",
)
def test_parameters_have_the_bounds_and_defaults_of_the_specification():
    taken = parameters(DOCUMENT, "/api/v1/signals")
    assert list(taken) == [
        "tier",
        "ticker",
        "indicator",
        "timeframe",
        "direction",
        "since",
        "limit",
        "offset",
        "order",
        "asset_class",
        "until",
        "view",
    ]
    assert taken["limit"]["schema"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 200,
        "default": 50,
    }
    assert taken["since"]["schema"]["format"] == "date-time"
    assert taken["tier"]["schema"]["default"] == "universe"
    assert all(parameter["description"] for parameter in taken.values())
    hours = parameters(DOCUMENT, "/api/v1/flips")["hours"]["schema"]
    assert (hours["minimum"], hours["maximum"]) == (1, 72)
    agree = parameters(DOCUMENT, "/api/v1/confluence")["min_agree"]["schema"]
    assert (agree["minimum"], agree["maximum"], agree["default"]) == (1, 6, 3)
    assert parameters(DOCUMENT, "/api/v1/usage") == {}


async def test_a_program_that_sends_every_example_gets_an_answer(served_alone):
    for method, path, operation in (await fetch_document(served_alone)).operations():
        if method == "GET" and path != f"/api/v1{PROOF_PATH}":
            sent = {p["name"]: p["example"] for p in operation.get("parameters", [])}
            answer = await served_alone.client.get(
                path, params=sent, headers=served_alone.key_headers
            )
            assert answer.status_code == 200, answer.text


def test_generators_of_clients_can_read_sources_and_patterns():
    schemas = DOCUMENT.content["components"]["schemas"]
    for name in ("StateMeta", "SignalsMeta", "FlipsMeta", "ConfluenceMeta", "StatsMeta"):
        assert {"enum", "type"} == schemas[name]["properties"]["source"].keys()
    patterns = [part["pattern"] for _, part in parts(DOCUMENT.content) if "pattern" in part]
    # Of properties, a pattern may also be a name.
    assert all(pattern.isascii() for pattern in patterns if isinstance(pattern, str))
    assert patterns


@pytest.mark.prove
async def test_a_list_is_valid_if_one_of_its_items_is_not_empty(served_alone):
    full = ("BTC", " btc , eth ", "BTC,,ETH", "BTC,", ",BTC")
    empty = ("", " ", ",", " , ")
    for path in ("/api/v1/state", "/api/v1/catalog"):
        validator = DOCUMENT.build_validator(parameters(DOCUMENT, path)["ticker"]["schema"])
        for text in full + empty:
            requested = {"params": {"ticker": text}, "headers": served_alone.key_headers}
            response = await served_alone.client.get(path, **requested)
            assert validator.is_valid(text) is response.is_success is (text in full)


async def test_the_errors_of_the_catalog_are_documented(served_alone):
    document = await fetch_document(served_alone)
    for query in ("ticker=", "ticker=,", "ticker=BTX", "ticker=BTC&ticker=ETH", "ticker=%z"):
        response = await served_alone.client.get(f"/api/v1/catalog?colour=red&{query}")
        assert (response.status_code, "ticker" in response.json()["message"]) == (400, True)
        document.check_response("GET", "/api/v1/catalog", response)


async def test_a_checkout_links_to_the_claim_of_its_token(served_alone):
    link = DOCUMENT.response("POST", "/api/v1/access/checkout", 201)["links"]["ClaimTheKey"]
    (path,) = [p for _, p, o in DOCUMENT.operations() if o["operationId"] == link["operationId"]]
    bought = {"contact_email": "agent@example.org"}
    checkout = await served_alone.client.post("/api/v1/access/checkout", json=bought)
    fields = {
        name: text.removeprefix("$response.body#/") for name, text in link["requestBody"].items()
    }
    body = {name: checkout.json()[field] for name, field in fields.items()}
    claim = await served_alone.client.post(path, json=body)
    assert (claim.status_code, claim.json()["status"]) == (200, "pending")


async def test_enums_follow_the_published_coverage(served_alone):
    whole = parameters(await fetch_document(served_alone), "/api/v1/state")
    assert whole["indicator"]["schema"]["enum"] == list(INDICATOR_IDS)
    assert whole["asset_class"]["schema"]["enum"] == ["crypto", "stock", "metal"]
    published = make_coverage()
    kept = [asset for asset in published.assets if asset.asset_class != "metal"]
    cut = {"assets": tuple(kept), "indicators": published.indicators[:2]}
    await served_alone.market.publish_coverage(published.model_copy(update=cut))
    narrowed = parameters(await fetch_document(served_alone), "/api/v1/state")
    assert narrowed["indicator"]["schema"]["enum"] == ["trend_oracle", "bayesian_trend"]
    assert narrowed["asset_class"]["schema"]["enum"] == ["crypto", "stock"]


def test_it_exists_before_coverage_is_published():
    assert json.loads(render_openapi("http://h", None, sells_keys=True))["paths"].keys() == set(
        DOCUMENT.content["paths"]
    )


@pytest.mark.clause(
    "4.0.1", "4.0.2", "4.2.1", "4.4.1", "4.5.2", "4.6.6", "4.7.26", "4.8.9", "4.9.18", "4.10.1"
)
async def test_the_response_of_every_get_route_matches_the_document(served_alone):
    document = await fetch_document(served_alone)
    reads = [path for method, path in list_operations(served_alone) if method == "GET"]
    for path in reads:
        response = await fetch(
            served_alone.client,
            "GET",
            path,
            400 if path.endswith(PROOF_PATH) else 200,
            headers=served_alone.key_headers,
        )
        document.check_response("GET", to_documented_path(path), response)


def body_validator(path):
    schema = DOCUMENT.operation("POST", path)["requestBody"]["content"]["application/json"]
    return DOCUMENT.build_validator(schema["schema"])


@pytest.mark.clause("7.15", "8.33", "8.34", "8.35", "8.36", "8.37")
@pytest.mark.parametrize(
    ("path", "body", "is_valid"),
    [
        ("access/checkout", {"contact_email": "a@example.org"}, True),
        ("access/checkout", {"contact_email": "a@example.org", "billing": "yearly"}, True),
        ("access/checkout", {"contact_email": "a@example.org", "agent_name": "x" * 120}, True),
        ("access/checkout", {"contact_email": "a@example.org", "agent_name": "x" * 121}, False),
        ("access/checkout", {"contact_email": "a@example.org", "billing": "weekly"}, False),
        ("access/checkout", {"contact_email": "a@example.org", "bilinng": "yearly"}, False),
        ("access/checkout", {"contact_email": "not an address"}, False),
        ("access/checkout", {"contact_email": "a@example.org", "agent_name": None}, False),
        ("access/checkout", {}, False),
        ("access/claim", {"claim_token": "ct_a-B" + "A" * 40}, True),
        ("access/claim", {"claim_token": "x" * 1000}, True),
        ("access/claim", {"claim_token": "x" * 1001}, False),
        ("access/claim", {"claim_token": ""}, False),
        ("access/claim", {}, False),
        ("access-request", {"contact_email": "a@example.org"}, True),
        (
            "access-request",
            {
                "contact_email": "a@example.org",
                "agent_name": "x" * 120,
                "operator": "x" * 120,
                "use_case": "x" * 1000,
                "expected_volume": "x" * 120,
            },
            True,
        ),
        ("access-request", {"contact_email": "a@example.org", "operator": "x" * 121}, False),
        ("access-request", {"contact_email": "a@example.org", "use_case": "x" * 1001}, False),
        ("access-request", {"contact_email": "a@example.org", "expected_volume": "x" * 121}, False),
        ("access-request", {"operator": "x"}, False),
    ],
)
def test_bodies_have_the_bounds_of_the_specification(path, body, is_valid):
    assert body_validator(f"/api/v1/{path}").is_valid(body) is is_valid


def test_billing_is_monthly_by_default():
    billing = DOCUMENT.find("#/components/schemas/CheckoutBody")["properties"]["billing"]
    assert (billing["enum"], billing["default"]) == (["monthly", "yearly"], "monthly")


CLAIM = ("POST", "/api/v1/access/claim", 200)
MISSING_KEY = ("GET", "/api/v1/state", 401)
BODY = {"error": "missing_key", "message": "m", "docs": "http://h"}
ACCESS = {"steps": ["s"], "plan": "premium", "price_usd": {"monthly": 1, "yearly": 2}}


@pytest.mark.parametrize(
    ("place", "answer", "is_valid"),
    [
        (MISSING_KEY, {**BODY, "how_to_get_access": ACCESS}, True),
        (MISSING_KEY, BODY, False),
        (MISSING_KEY, {**BODY, "how_to_get_access": {}}, False),
        (MISSING_KEY, {**BODY, "how_to_get_access": ACCESS, "more": 1}, False),
        (
            CLAIM,
            {"status": "pending", "mode": None, "message": "m", "retry_after_seconds": 10},
            True,
        ),
        (CLAIM, {"status": "pending", "mode": "test", "message": "m"}, False),
        (CLAIM, {"status": "active", "mode": "live", "api_key": "ek_" + "a" * 43}, False),
        (
            CLAIM,
            {
                "status": "active",
                "mode": "live",
                "api_key": "ek_" + "a" * 43,
                "usage": {
                    "header": "h",
                    "daily_limit": 10_000,
                    "quota_resets": "00:00 UTC",
                    "start_here": "s",
                },
            },
            True,
        ),
        (
            CLAIM,
            {"status": "active", "mode": "live", "message": "m", "retry_after_seconds": 10},
            False,
        ),
    ],
)
def test_a_claim_has_one_of_two_responses_and_a_missing_key_one_that_says_how_to_get_it(
    place, answer, is_valid
):
    response = DOCUMENT.response(*place)
    validator = DOCUMENT.build_validator(response["content"]["application/json"]["schema"])
    assert validator.is_valid(answer) is is_valid


@pytest.mark.parametrize(
    ("message", "is_valid"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "ping"}, True),
        ({"jsonrpc": "2.0", "id": None, "method": "ping", "params": {}}, True),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, True),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, False),
        ({"jsonrpc": "2.0", "id": 1}, False),
        ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, False),
        ([], False),
    ],
)
async def test_the_envelope_is_valid_exactly_if_the_endpoint_accepts_it(served, message, is_valid):
    assert body_validator("/api/v1/mcp").is_valid(message) is is_valid
    response = await served.post_mcp(message)
    refused = response.status_code == 200 and response.json().get("error", {}).get("code")
    assert (refused == -32600) is not is_valid


def test_the_example_of_a_page_matches_its_schema():
    content = DOCUMENT.response("GET", "/api/v1/signals/sample", 200)["content"]
    example = DOCUMENT.resolve(content["application/json"]["examples"]["sample"])["value"]
    DOCUMENT.build_validator(content["application/json"]["schema"]).validate(example)
    call = DOCUMENT.operation("POST", "/api/v1/mcp")["requestBody"]["content"]["application/json"]
    DOCUMENT.build_validator(call["schema"]).validate(call["example"])
