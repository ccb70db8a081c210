"""llms.txt: what an agent can call and read here, in the form of llmstxt.org."""

from access.oauth.parameters import RESOURCE_PATH, can_serve_oauth
from mcp_server.dispatcher import INSTRUCTIONS, TITLE
from mcp_server.server_card import EXAMPLE_PROMPTS
from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import CALL_MCP, GET_LEGAL, GET_MANIFEST, GET_OPENAPI
from rest_shim.manifest import DESCRIPTION, DISCLAIMER
from web.docs import OPERATORS, PAGES_BY_READER, list_shown_links

SKILL_PATH = "/skills/signals/SKILL.md"
# The format's section "Optional" holds what readers in a hurry can skip.
OPTIONAL_PAGES = frozenset(PAGES_BY_READER[OPERATORS])
# Title, path and meaning of each link.
LinkRow = tuple[str, str, str]
SIGN_IN_ROW: LinkRow = (
    "MCP server, sign-in with OAuth",
    RESOURCE_PATH,
    "for hosts that ask for an address only",
)
CONNECT_ROWS: list[LinkRow] = [
    ("MCP server, with an API key", CALL_MCP.path, "for hosts that send a header"),
    ("Registrations", "/docs/connect", "a file, command or install link for each host"),
    ("Skill", SKILL_PATH, "which tool when, how to poll, how to read answers"),
    ("Manifest", GET_MANIFEST.path, "endpoints, authentication, limits and how to get a key"),
    ("OpenAPI", GET_OPENAPI.path, "the REST API, which has the same tools"),
    ("Terms and privacy", GET_LEGAL.path, "terms of use, stored personal data, redistribution"),
]


def render_llms_text(base_url: str, *, sells_keys: bool) -> str:
    """Return the file in Markdown; `base_url` starts every link."""
    links = list_shown_links(sells_keys=sells_keys)
    pages = {link.name: (link.title, f"/docs/{link.name}", link.about) for link in links}
    sections = {
        "Connect": [*([SIGN_IN_ROW] if can_serve_oauth(base_url) else []), *CONNECT_ROWS],
        "Tools": [(tool.name, f"/docs/tools#{tool.name}", tool.title) for tool in TOOLS],
        "Documentation": [row for name, row in pages.items() if name not in OPTIONAL_PAGES],
        "Optional": [row for name, row in pages.items() if name in OPTIONAL_PAGES],
    }
    prompts = "\n".join(f"- {prompt}" for prompt in EXAMPLE_PROMPTS)
    head = [f"# {TITLE}", f"> {DESCRIPTION}", DISCLAIMER, INSTRUCTIONS, f"Examples:\n\n{prompts}"]
    rest = [f"## {title}\n\n{_render_links(base_url, rows)}" for title, rows in sections.items()]
    return "\n\n".join([*head, *rest]) + "\n"


def _render_links(base_url: str, rows: list[LinkRow]) -> str:
    return "\n".join(f"- [{title}]({base_url}{path}): {about}" for title, path, about in rows)
