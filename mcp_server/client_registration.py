"""Registration snippets of the MCP server: what a client is, and the parts that snippets share.

`mcp_server/clients.py` lists the clients. A snippet names the environment variable that holds the
key, or a placeholder, never the key itself, in the syntax of the client's documentation.
"""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from mcp_server.endpoint import PATHS

KEY_VARIABLE: Final = "SIGNALS_API_KEY"
# For files in which a client expands no variables, as far as its documentation says.
KEY_PLACEHOLDER: Final = "YOUR_API_KEY"


@dataclass(frozen=True, slots=True)
class Client:
    """An agent host or framework, and the snippet that registers the server in it.

    `render` takes the base URL of the service. `documentation` is the page that describes the
    format. `tried` is the version that the snippet was tried with, empty if it was not.
    `render_link` returns a link that installs the server in the client.
    """

    name: str
    title: str
    location: str
    language: Literal["sh", "json", "toml", "yaml", "python", "text"]
    render: Callable[[str], str]
    documentation: str
    note: str = ""
    tried: str = ""
    render_link: Callable[[str], str] | None = None

    @property
    def instructions(self) -> str:
        """A heading that says where the snippet goes, with the client's note."""
        return f"{self.title}, {self.location}" + (f"; {self.note}" if self.note else "") + ":"

    @property
    def tried_with(self) -> str:
        """A sentence that says which version the snippet was tried with."""
        if not self.tried:
            return "Not tried, written by the documentation."
        return f"Tried with version {self.tried}."

    @property
    def signs_in(self) -> bool:
        """Whether the client needs only the address, because it signs its user in with OAuth."""
        return self.language == "text"

    def render_lines(self, base_url: str) -> str:
        """Return the registration snippet, ending with a newline."""
        return self.render(base_url) + "\n"


def build_server_entry(base_url: str, api_key: str = f"${{{KEY_VARIABLE}}}") -> dict[str, Any]:
    """Return the server entry that most JSON files accept.

    `api_key` is the reference or placeholder that stands for the key.
    """
    return {"type": "http", "url": base_url + PATHS[0], "headers": build_headers(api_key)}


def build_headers(api_key: str) -> dict[str, str]:
    """Return the header with the key; `api_key` is a reference or placeholder."""
    return {"Authorization": f"Bearer {api_key}"}


def build_registration_file(base_url: str) -> dict[str, Any]:
    """Return the content of the registration file that most hosts accept."""
    return {"mcpServers": {"signals": build_server_entry(base_url)}}


def render_claude_code(base_url: str) -> str:
    """Return the command that registers the server in Claude Code."""
    # Single quotes keep the shell from expanding the variable, so Claude Code stores its name and
    # the key stays out of the file that the command writes.
    return (
        f"claude mcp add --transport http signals {shlex.quote(base_url + PATHS[0])} "
        f"--header 'Authorization: Bearer ${{{KEY_VARIABLE}}}'"
    )


def render_json(value: Any) -> str:
    """Return indented JSON, as people keep it in files."""
    return json.dumps(value, indent=2)
