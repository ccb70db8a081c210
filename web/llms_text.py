"""llms.txt: what an agent can call and read here, in the form of llmstxt.org."""

from mcp_server.client_registration import SIGN_IN_PATH
from mcp_server.dispatcher import INSTRUCTIONS
from mcp_server.server_card import EXAMPLE_PROMPTS, TITLE
from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import CALL_MCP, GET_LEGAL, GET_MANIFEST, GET_OPENAPI
from rest_shim.manifest import DESCRIPTION, DISCLAIMER
from web.reference_pages import list_page_links

SKILL_PATH = "/skills/signals/SKILL.md"
# Pages for operators and developers; the others help whoever uses the service.
OPERATOR_PAGES = frozenset(
    {"deployment", "recovery", "monitoring", "selling", "settings", "commands", "scaling"}
)


def render_llms_text(base_url: str, *, sells_keys: bool) -> str:
    """Return the file in Markdown; `base_url` starts every link."""
    links = list_page_links(sells_keys=sells_keys)
    pages = [(one.title, f"/docs/{one.name}", one.about) for one in links]
    is_optional = [one.name in OPERATOR_PAGES for one in links]
    sections = {
        "Connect": _CONNECT,
        "Tools": [(tool.name, f"/docs/tools#{tool.name}", tool.title) for tool in TOOLS],
        "Documentation": [page for page, out in zip(pages, is_optional, strict=True) if not out],
        "Optional": [page for page, out in zip(pages, is_optional, strict=True) if out],
    }
    prompts = "\n".join(f"- {prompt}" for prompt in EXAMPLE_PROMPTS)
    return "\n\n".join(
        [
            f"# {TITLE}",
            f"> {DESCRIPTION}",
            DISCLAIMER,
            INSTRUCTIONS,
            f"Questions that it answers:\n\n{prompts}",
            *(f"## {title}\n\n{_render_links(base_url, rows)}" for title, rows in sections.items()),
        ]
    )


_CONNECT = [
    ("MCP server, sign-in with OAuth", SIGN_IN_PATH, "Streamable HTTP, for hosts that take an URL"),
    ("MCP server, with an API key", CALL_MCP.path, "Streamable HTTP, the key in a header"),
    ("Registration for each host", "/docs/connect", "files, commands and install links"),
    ("Skill", SKILL_PATH, "which tool when, how to poll, how to read answers"),
    ("Manifest", GET_MANIFEST.path, "endpoints, authentication, limits and how to get a key"),
    ("OpenAPI", GET_OPENAPI.path, "the REST API, with the same tools"),
    ("Terms and privacy", GET_LEGAL.path, "terms of use, stored personal data, redistribution"),
]


def _render_links(base_url: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [f"- [{title}]({base_url}{path}): {about}" for title, path, about in rows]
    return "\n".join(lines) + ("\n" if False else "")
