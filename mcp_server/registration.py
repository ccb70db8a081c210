"""Registration of the MCP server in its clients: hosts of agents, and frameworks for programs.

A snippet follows the page that its client names as `documentation`. It names the environment
variable that holds the key, or a placeholder, never the key itself, in the syntax of that page.
The snippets are in clients.toml.
"""

import json
import shlex
import tomllib
from base64 import b64encode
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode, urlsplit

from access.oauth.parameters import RESOURCE_PATH
from mcp_server.endpoint import PATHS

KEY_VARIABLE: Final = "SIGNALS_API_KEY"


@dataclass(frozen=True, slots=True)
class Client:
    """An agent host or framework, and the snippet that registers the server in it.

    `documentation` is the page that describes the format. `tried` is the version that the snippet
    was tried with, empty if it was not. `link` is the beginning of a link that installs the server
    in the client, `link_values` what follows in it, encoded as `link_encoding` says.
    """

    name: str
    title: str
    location: str
    language: Literal["sh", "json", "toml", "yaml", "python", "text"]
    documentation: str
    snippet: str
    note: str = ""
    tried: str = ""
    link: str = ""
    link_encoding: Literal["json", "base64", "query"] = "json"
    link_values: dict[str, Any] = field(default_factory=dict)

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
        url, parts = base_url + PATHS[0], urlsplit(base_url)
        # mcp-remote refuses a plain HTTP address in a network without this option.
        is_safe = parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1")
        values = {
            "@URL@": json.dumps(url),
            "@SHELL_URL@": shlex.quote(url),
            "@SIGN_IN_URL@": base_url + RESOURCE_PATH,
            "@ALLOW_HTTP@": "" if is_safe else " --allow-http",
            "@ALLOW_HTTP_ITEM@": "" if is_safe else ',\n        "--allow-http"',
        }
        text = self.snippet
        for mark, value in values.items():
            text = text.replace(mark, value)
        return text

    def render_link(self, base_url: str) -> str:
        """Return the link that installs the server in the client, empty if there is none."""
        url = base_url + PATHS[0]
        values = {name: url if each == "@URL@" else each for name, each in self.link_values.items()}
        if self.link_encoding == "query":
            return self.link + urlencode(values, quote_via=quote, safe="")
        text = json.dumps(values)
        if self.link_encoding == "base64":
            text = b64encode(text.encode()).decode()
        return self.link and self.link + quote(text, safe="")


def _read_clients(kind: str) -> tuple[Client, ...]:
    text = files("mcp_server").joinpath("clients.toml").read_text(encoding="utf-8")
    return tuple(Client(**client) for client in tomllib.loads(text)[kind])


HOSTS, FRAMEWORKS = _read_clients("hosts"), _read_clients("frameworks")
CLIENTS = (*HOSTS, *FRAMEWORKS)
CLIENTS_BY_NAME = {client.name: client for client in CLIENTS}


def build_registration_file(base_url: str) -> dict[str, Any]:
    """Return the content of the registration file that most hosts accept."""
    headers = {"Authorization": f"Bearer ${{{KEY_VARIABLE}}}"}
    return {
        "mcpServers": {
            "signals": {"type": "http", "url": base_url + PATHS[0], "headers": headers},
        }
    }
