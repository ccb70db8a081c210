"""The OpenAPI viewer shows the whole document."""

import pytest

from tests.support.running_service import RunningService
from tests.support.shared_service import served as served
from tests.support.web_page import Page
from web.openapi_viewer import build_viewer_values

pytestmark = pytest.mark.clause("19.6")


async def test_every_operation_parameter_response_and_schema_is_shown(served: RunningService):
    page = Page(await served.client.get("/docs/openapi"))
    document = (await served.client.get("/api/v1/openapi.json")).json()
    rows = {tuple(row[:1]) for row in page.rows}
    for path, item in document["paths"].items():
        for operation in item.values():
            assert operation["operationId"] in page.ids
            assert path in page.text
            assert operation["description"] in page.text
            assert f"../docs/try/{operation['operationId']}" in page.links
            assert {(one["name"],) for one in operation.get("parameters", [])} <= rows
    for name, schema in document["components"]["schemas"].items():
        assert {name, f"schema-{name}"} <= set(page.ids)
        assert {(field,) for field in schema.get("properties", {})} <= rows
    assert {f"#{name}" for name in ("StateResponse", "ErrorBody")} <= set(page.links)


async def test_every_status_of_an_operation_is_listed_with_its_body(served: RunningService):
    document = (await served.client.get("/api/v1/openapi.json")).json()
    groups = build_viewer_values(document)["groups"]
    operations = {one.id: one for _, members in groups for one in members}
    state = operations["signals_get_state"]
    expected = document["paths"]["/api/v1/state"]["get"]["responses"]
    assert [one.status for one in state.responses] == list(expected)
    bodies = {one.status: one.type for one in state.responses}
    assert bodies["200"] == [("StateResponse", "StateResponse")]
    assert bodies["304"] == []
    assert bodies["400"] == [("ErrorBody", "ErrorBody")]
    assert "Retry-After" in next(one for one in state.responses if one.status == "429").headers
    (example,) = operations["signals_get_sample"].responses[0].examples
    assert example.startswith('{\n  "signals"')


def test_types_link_to_their_schemas() -> None:
    item = {"$ref": "#/components/schemas/Item"}
    schema = {
        "properties": {
            "one": item,
            "list": {"type": "array", "items": item},
            "map": {"type": "object", "additionalProperties": item},
            "either": {"anyOf": [item, {"type": "null"}], "description": "A\n text."},
        },
        "required": ["one"],
    }
    document = {
        "info": {},
        "servers": [{"url": "http://x"}],
        "tags": [],
        "paths": {},
        "components": {"schemas": {"Whole": schema}, "securitySchemes": {}},
    }
    (whole,) = build_viewer_values(document)["schemas"]
    types = {row.name: "".join(part.text for part in row.type) for row in whole.rows}
    assert types == {
        "one": "Item",
        "list": "list of Item",
        "map": "object of Item",
        "either": "Item or null",
    }
    assert [row.is_required for row in whole.rows] == [True, False, False, False]
    assert whole.rows[3].description == "A text."
    assert {part.schema for row in whole.rows for part in row.type} == {"Item", ""}
