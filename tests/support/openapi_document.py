"""Reads the served OpenAPI document, resolves references and checks responses against it.

Responses are checked against the closed form of the schemas, which rejects undocumented fields.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from rest_shim.log import TILE_PATH
from tests.support.response_schemas import close_schema
from tests.support.running_service import RunningService
from web.discovery import DISCOVERY_PATHS

Part = dict[str, Any]

# The paths of the API; all others are pages, files for programs, probes or OAuth.
API_PATHS = ("/api/v1", "/legal")


class OpenApiDocument:
    """One OpenAPI document."""

    def __init__(self, content: Part) -> None:
        self.content = content
        resource = DRAFT202012.create_resource(close_schema(content))
        self._registry: Registry[Any] = Registry().with_resource("urn:document", resource)

    def operations(self) -> Iterator[tuple[str, str, Part]]:
        for path, item in self.content["paths"].items():
            for method, operation in item.items():
                yield method.upper(), path, operation

    def operation(self, method: str, path: str) -> Any:
        return self.content["paths"][path][method.lower()]

    def response(self, method: str, path: str, status: int) -> Part:
        return self.resolve(self.operation(method, path)["responses"][str(status)])

    def resolve(self, part: Part) -> Part:
        return self.find(part["$ref"]) if "$ref" in part else part

    def find(self, reference: str) -> Part:
        """Return the target of a reference; raise KeyError if it is missing."""
        assert reference.startswith("#/"), reference
        part: Part = self.content
        for key in reference[2:].split("/"):
            part = part[key.replace("~1", "/").replace("~0", "~")]
        return part

    def build_validator(self, schema: Part) -> jsonschema.Draft202012Validator:
        """Return a validator of the closed form of a schema that refers to components."""
        return jsonschema.Draft202012Validator(
            _make_references_absolute(close_schema(schema)),
            registry=self._registry,
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        )

    def check_response(self, method: str, path: str, answer: httpx.Response) -> None:
        """Assert that type, body and headers of a response match the document."""
        response = self.response(method, path, answer.status_code)
        sent = answer.headers.get("content-type", "").partition(";")[0]
        if "content" not in response:
            assert (answer.content, sent) == (b"", "")
            return
        schema = response["content"][sent]["schema"]
        is_json = sent == "application/json"
        self.build_validator(schema).validate(answer.json() if is_json else answer.text)
        for name, header in response.get("headers", {}).items():
            assert name in answer.headers or not self.resolve(header)["required"], name


async def fetch_document(served: RunningService) -> OpenApiDocument:
    return OpenApiDocument((await served.client.get("/api/v1/openapi.json")).json())


@pytest.fixture
async def document(served: RunningService) -> OpenApiDocument:
    return await fetch_document(served)


def list_operations(served: RunningService) -> list[tuple[str, str]]:
    """Return method and path of every route of the API but that of tiles.

    OpenAPI cannot describe that one, whose path has any number of slashes.
    """
    return [
        (method, route.path)
        for route in served.app.routes
        if route.path.startswith(API_PATHS) and route.path not in (*DISCOVERY_PATHS, TILE_PATH)
        for method in (route.methods or {"POST"}) - {"HEAD"}
    ]


def to_documented_path(path: str) -> str:
    return path.rstrip("/")


def _make_references_absolute(schema: Any) -> Any:
    """Return a schema with absolute references, for use outside of the document."""
    if isinstance(schema, list):
        return [_make_references_absolute(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"urn:document{value}" if key == "$ref" else _make_references_absolute(value)
        for key, value in schema.items()
    }
