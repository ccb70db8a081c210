"""server.json, the entry for MCP registries, and glama.json, the claim at a directory."""

import json
import re

import httpx
import jsonschema
import pytest

from access.oauth.parameters import RESOURCE_PATH
from rest_shim.endpoints import CALL_MCP
from schemas.version import VERSION
from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("documents")

SERVER = json.loads((ROOT / "server.json").read_text())


def test_it_names_the_version_and_the_endpoint_of_any_host():
    assert SERVER["version"] == VERSION
    assert SERVER["name"].endswith("/signals")
    # Registries reject remotes that are not https, or whose scheme is a variable.
    urls = ["https://{host}" + path for path in (RESOURCE_PATH, CALL_MCP.path)]
    assert [remote["url"] for remote in SERVER["remotes"]] == urls
    for remote in SERVER["remotes"]:
        assert remote["type"] == "streamable-http"
        assert remote["variables"]["host"]["isRequired"] is True
    assert "packages" not in SERVER


def test_its_key_is_a_secret_that_clients_prompt_for():
    oauth, keyed = SERVER["remotes"]
    assert "headers" not in oauth
    (header,) = keyed["headers"]
    assert (header["name"], header["value"]) == ("Authorization", "Bearer {api_key}")
    assert set(header["variables"]) == set(re.findall(r"\{(\w+)\}", header["value"]))
    assert header["isSecret"] is header["variables"]["api_key"]["isSecret"] is True


def test_glama_json_names_its_schema_and_a_maintainer():
    claim = json.loads((ROOT / "glama.json").read_text())
    assert set(claim) == {"$schema", "maintainers"}
    assert claim["$schema"] == "https://glama.ai/mcp/schemas/server.json"
    # The same owner as in server.json.
    owner = SERVER["name"].removeprefix("io.github.").partition("/")[0]
    assert claim["maintainers"] == [owner]


@pytest.mark.prove
def test_it_is_valid_by_its_schema():
    """Validate it by the published schema at `$schema`, which is not in the repository."""
    try:
        published = httpx.get(SERVER["$schema"])
    except httpx.ConnectError:
        pytest.skip("the published schema cannot be reached from here")
    jsonschema.validate(SERVER, published.raise_for_status().json())
