"""The server card and the AI catalog, by which programs find the MCP server of a domain.

The format is that of the server card extension of MCP (SEP-2127).
"""

from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from access.oauth.parameters import RESOURCE_PATH, can_serve_oauth
from mcp_server.dispatcher import TITLE
from mcp_server.endpoint import PATHS
from mcp_server.protocol_legs import LEGACY_VERSIONS, MODERN_VERSION
from schemas.operator import Operator
from schemas.version import VERSION
from schemas.vocabulary import INDICATOR_COUNT_TEXT

CARD_TYPE: Final = "application/mcp-server-card+json"
CATALOG_TYPE: Final = "application/ai-catalog+json"
SKILL_TYPE: Final = "application/agent-skills+md"
CARD_SUFFIX: Final = "/server-card"
SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
# The schema allows 100 characters.
SUMMARY: Final = (
    f"Readings of {INDICATOR_COUNT_TEXT} trading indicators for crypto, stocks and metals, hourly."
)
EXAMPLE_PROMPTS: Final = (
    "What do the indicators read for BTC, NVDA and gold, and how old are the data?",
    "On which stocks do most indicators agree on the daily timeframe?",
    "Which readings of crypto assets have changed since yesterday?",
)


def build_server_card(base_url: str, operator: Operator) -> dict[str, Any]:
    """Return the server card of the service at a base URL."""
    host = urlsplit(base_url).hostname or ""
    # Names of servers begin with the host in reverse-DNS form. An address has none, and that of
    # IPv6 has characters that names forbid.
    namespace = ".".join(reversed(host.split(".")))
    with suppress(ValueError):
        ip_address(host)
        namespace = "localhost"
    legal = f"{base_url}/legal"
    described = {
        "name": operator.name,
        "contact": operator.contact,
        "termsUrl": operator.terms_url or legal,
        "privacyUrl": operator.privacy_url or legal,
    }
    return {
        "$schema": SCHEMA,
        "name": f"{namespace}/signals",
        "title": TITLE,
        "description": SUMMARY,
        "version": VERSION,
        "websiteUrl": f"{base_url}/",
        "icons": [
            {"src": f"{base_url}/web/icon.svg", "mimeType": "image/svg+xml", "sizes": ["any"]}
        ],
        "remotes": [
            *([_build_remote(base_url + RESOURCE_PATH)] if can_serve_oauth(base_url) else []),
            {**_build_remote(base_url + PATHS[0]), "headers": [_KEY_HEADER]},
        ],
        "_meta": {
            f"{namespace}/operator": {
                name: value for name, value in described.items() if value is not None
            },
            f"{namespace}/examplePrompts": list(EXAMPLE_PROMPTS),
        },
    }


def build_ai_catalog(base_url: str, skill_path: str) -> dict[str, Any]:
    """Return the catalog of the domain: the server card and the skill."""
    publisher = urlsplit(base_url).hostname
    return {
        "specVersion": "1.0",
        "entries": [
            {
                "identifier": f"urn:air:{publisher}:mcp:signals",
                "displayName": TITLE,
                "type": CARD_TYPE,
                "url": base_url + PATHS[0] + CARD_SUFFIX,
            },
            {
                "identifier": f"urn:air:{publisher}:skill:signals",
                "displayName": "How to use Signals",
                "type": SKILL_TYPE,
                "url": base_url + skill_path,
            },
        ],
    }


def _build_remote(url: str) -> dict[str, Any]:
    return {
        "type": "streamable-http",
        "url": url,
        "supportedProtocolVersions": [MODERN_VERSION, *LEGACY_VERSIONS],
    }


# The same as in server.json, the entry for registries.
_KEY_HEADER = {
    "name": "Authorization",
    "description": "An API key of this service, which starts with ek_. The catalog and stats "
    "tools need none.",
    "isRequired": True,
    "isSecret": True,
    "value": "Bearer {api_key}",
    "variables": {
        "api_key": {"description": "The API key", "isRequired": True, "isSecret": True},
    },
}
