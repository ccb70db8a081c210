"""Builds the MCPB bundle, the file from which desktop hosts install the server.

It holds a manifest of version 0.3 and a bridge from stdio to the service, in JavaScript without
dependencies: hosts that install bundles bring Node.js, so nothing else has to be on the machine.
"""

import io
import json
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from mcp_server.dispatcher import TITLE
from mcp_server.registration import KEY_VARIABLE
from mcp_server.server_card import SUMMARY
from mcp_server.tools.tool_table import TOOLS
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.version import VERSION

ENTRY_POINT: Final = "server/index.js"
AUTHOR: Final = "the signals developers"
# Equal content gives equal bytes, so caches and checksums hold.
FILE_TIME = (2026, 1, 1, 0, 0, 0)


@lru_cache(maxsize=2)
def build_bundle(base_url: str | None = None, operator: Operator = UNNAMED_OPERATOR) -> bytes:
    """Return a bundle that suggests `base_url` to its user, or no address if it is None."""
    content = {
        "manifest.json": json.dumps(build_manifest(base_url, operator), indent=2) + "\n",
        ENTRY_POINT: files("mcp_server").joinpath("bundle_bridge.js").read_text(encoding="utf-8"),
    }
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, text in content.items():
            archive.writestr(ZipInfo(name, FILE_TIME), text, compress_type=ZIP_DEFLATED)
    return buffer.getvalue()


def build_manifest(base_url: str | None, operator: Operator = UNNAMED_OPERATOR) -> dict[str, Any]:
    """Return the manifest of a bundle."""
    pages: dict[str, Any] = {}
    if base_url is not None:
        pages = {
            "homepage": f"{base_url}/",
            "documentation": f"{base_url}/docs",
            "privacy_policies": [operator.privacy_url or f"{base_url}/legal"],
        }
        if operator.contact_url is not None:
            pages["support"] = operator.contact_url
    return {
        "manifest_version": "0.3",
        "name": "signals",
        "display_name": TITLE,
        "version": VERSION,
        "description": SUMMARY,
        "author": {"name": operator.name or AUTHOR},
        **pages,
        "server": {
            "type": "node",
            "entry_point": ENTRY_POINT,
            "mcp_config": {
                "command": "node",
                "args": [f"${{__dirname}}/{ENTRY_POINT}"],
                "env": {
                    "SIGNALS_URL": "${user_config.url}",
                    KEY_VARIABLE: "${user_config.api_key}",
                },
            },
        },
        "tools": [{"name": tool.name, "description": tool.title} for tool in TOOLS],
        "keywords": ["indicators", "trading", "crypto", "stocks", "metals"],
        "license": "Apache-2.0",
        "compatibility": {
            "platforms": ["darwin", "win32", "linux"],
            "runtimes": {"node": ">=18.0.0"},
        },
        "user_config": {
            "url": {
                "type": "string",
                "title": "Service address",
                "description": "Address of the Signals service, such as "
                "https://signals.example.com.",
                "required": True,
                **({} if base_url is None else {"default": base_url}),
            },
            "api_key": {
                "type": "string",
                "title": "API key",
                "description": "A key of that service, which starts with ek_.",
                "sensitive": True,
                "required": True,
            },
        },
    }
