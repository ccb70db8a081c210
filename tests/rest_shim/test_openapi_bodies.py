import pytest

from rest_shim.openapi import build_openapi
from tests.support.example_market import make_coverage
from tests.support.openapi_document import OpenApiDocument
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("documents")

DOCUMENT = OpenApiDocument(build_openapi("http://h", make_coverage()))


def body_validator(path):
    schema = DOCUMENT.operation("POST", path)["requestBody"]["content"]["application/json"]
    return DOCUMENT.build_validator(schema["schema"])


@pytest.mark.clause("7.15", "8.33", "8.34", "8.35", "8.36", "8.37")
@pytest.mark.parametrize(
    ("path", "body", "is_valid"),
    [
        ("checkout", {"contact_email": "a@example.org"}, True),
        ("checkout", {"contact_email": "a@example.org", "billing": "yearly"}, True),
        ("checkout", {"contact_email": "a@example.org", "agent_name": "x" * 120}, True),
        ("checkout", {"contact_email": "a@example.org", "agent_name": "x" * 121}, False),
        ("checkout", {"contact_email": "a@example.org", "billing": "weekly"}, False),
        ("checkout", {"contact_email": "a@example.org", "bilinng": "yearly"}, False),
        ("checkout", {"contact_email": "not an address"}, False),
        ("checkout", {"contact_email": "a@example.org", "agent_name": None}, False),
        ("checkout", {}, False),
        ("claim", {"claim_token": "ct_a-B" + "A" * 40}, True),
        ("claim", {"claim_token": "x" * 1000}, True),
        ("claim", {"claim_token": "x" * 1001}, False),
        ("claim", {"claim_token": ""}, False),
        ("claim", {}, False),
        ("request", {"contact_email": "a@example.org"}, True),
        (
            "request",
            {
                "contact_email": "a@example.org",
                "agent_name": "x" * 120,
                "operator": "x" * 120,
                "use_case": "x" * 1000,
                "expected_volume": "x" * 120,
            },
            True,
        ),
        ("request", {"contact_email": "a@example.org", "operator": "x" * 121}, False),
        ("request", {"contact_email": "a@example.org", "use_case": "x" * 1001}, False),
        ("request", {"contact_email": "a@example.org", "expected_volume": "x" * 121}, False),
        ("request", {"operator": "x"}, False),
    ],
)
def test_bodies_have_the_bounds_of_the_specification(path, body, is_valid):
    paths = {
        "checkout": "/api/v1/access/checkout",
        "claim": "/api/v1/access/claim",
        "request": "/api/v1/access-request",
    }
    assert body_validator(paths[path]).is_valid(body) is is_valid


def test_billing_is_monthly_by_default():
    billing = DOCUMENT.find("#/components/schemas/CheckoutBody")["properties"]["billing"]
    assert (billing["enum"], billing["default"]) == (["monthly", "yearly"], "monthly")


@pytest.mark.parametrize(
    ("answer", "is_valid"),
    [
        ({"status": "pending", "mode": None, "message": "m", "retry_after_seconds": 10}, True),
        ({"status": "pending", "mode": "test", "message": "m"}, False),
        ({"status": "active", "mode": "live", "api_key": "ek_" + "a" * 43}, False),
        (
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
        ({"status": "active", "mode": "live", "message": "m", "retry_after_seconds": 10}, False),
    ],
)
def test_the_response_to_a_claim_has_one_of_two_shapes(answer, is_valid):
    response = DOCUMENT.response("POST", "/api/v1/access/claim", 200)
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
