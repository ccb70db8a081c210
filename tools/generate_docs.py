"""Updates the generated blocks of the documentation: `python -m tools.generate_docs`.

A block is the text between `<!-- generated: NAME -->` and `<!-- end -->`. `make docs` runs it too.
"""

import argparse
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from mcp_server.client_registration import Client
from mcp_server.clients import CLIENTS, CLIENTS_BY_NAME, FRAMEWORKS, HOSTS
from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import ENDPOINTS
from service.commands.cli import _build_parser
from service.commands.command_tree import walk_commands
from service.commands.examples import EXAMPLES
from service.config.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
NAMES = (
    "commands",
    "connect",
    "proof-of-storage",
    "settings",
)
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES))
BLOCK_PATTERN = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# The README is short: a command-line host and an editor stand for the rest.
FIRST_CLIENTS = ("claude-code", "cursor")
MAX_USAGE_CHARS = 120
ADDRESS = "http://127.0.0.1:8000"


def main(pages: Iterable[Path] = PAGES) -> None:
    """Update the pages."""
    for page, text in find_outdated(pages).items():
        page.write_text(text)


def find_outdated(pages: Iterable[Path]) -> dict[Path, str]:
    """Return the new text of each page that has an outdated block."""
    texts = {page: page.read_text() for page in pages}
    current_texts = {
        page: BLOCK_PATTERN.sub(
            lambda match: match[1] + BLOCK_RENDERERS[match[2]]() + match[3], text
        )
        for page, text in texts.items()
    }
    return {page: text for page, text in current_texts.items() if text != texts[page]}


def render_tools() -> str:
    """Return the table of tools, in the order of tools/list."""
    calls = {e.tool.name: f"{e.method} {e.path}" for e in ENDPOINTS if e.tool}
    return _render_table(
        ("tool", "REST", "key", "what it returns"),
        (
            (
                f"`{tool.name}`",
                f"`{calls[tool.name]}`",
                "yes" if tool.requires_key else "no",
                _extract_first_sentence(tool.description),
            )
            for tool in TOOLS
        ),
    )


def render_clients() -> str:
    """Return the table of clients: location, command, version tried, and documentation."""
    return _render_table(
        ("client", "location", "command", "tried", "format"),
        (
            (
                client.title,
                client.location,
                f"`signals connect {client.name}`",
                client.tried or "no",
                f"[documentation]({client.documentation})",
            )
            for client in CLIENTS
        ),
    )


def render_registrations(clients: Iterable[Client]) -> str:
    """Return how to register the service with each of some clients."""
    return "\n".join(
        f"{client.instructions}\n\n```{client.language}\n{client.render_lines(ADDRESS)}```\n"
        for client in clients
    )


def render_settings() -> str:
    """Return the table of settings, in the order of `Settings`."""
    return _render_table(
        ("setting", "default", "meaning"),
        (
            (f"`{PREFIX}{name.upper()}`", _format_default(field.default), field.description or "")
            for name, field in Settings.model_fields.items()
        ),
    )


def _format_default(default: object) -> str:
    """Format a default as an environment variable has it; empty if the setting is unset."""
    value = default.get_secret_value() if isinstance(default, SecretStr) else default
    text = str(int(value)) if isinstance(value, bool) else str(value or "")
    return f"`{text}`" if text else ""


def render_commands() -> str:
    """Return a section for each command: its usage, its purpose and its options."""
    return "\n".join(_render_command(command) for command in walk_commands(_build_parser()))


def _render_command(command: argparse.ArgumentParser) -> str:
    arguments = [one for one in command._actions if not isinstance(one, argparse._HelpAction)]
    # `format_usage` would wrap at the width of the terminal, so the page would depend on it.
    formatter = argparse.HelpFormatter(command.prog, width=MAX_USAGE_CHARS)
    formatter.add_usage(None, arguments, [], prefix="")
    # Python 3.14 colours it on a terminal.
    usage = re.sub(r"\x1b\[[\d;]*m", "", formatter.format_help()).strip()
    purpose = _format_sentence(command.description or "")
    options = "".join(
        f"- `{' '.join((*one.option_strings, str(one.metavar or ''))).strip()}`: "
        f"{_format_sentence(one.help)}\n"
        for one in arguments
        if one.help
    )
    examples = "".join(f"{line}\n" for line in EXAMPLES.get(command.prog, ()))
    parts = (
        *(f"### {command.prog}\n", f"```sh\n{usage}\n```\n", f"{purpose}\n", options),
        f"For example:\n\n```sh\n{examples}```\n" if examples else "",
    )
    return "\n".join(filter(None, parts))


def _format_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def render_tampers() -> str:
    """Return the table of columns of the market store, with the ways by which a change is found."""
    listed = tomllib.loads((ROOT / "docs" / "tampers.toml").read_text())
    return _render_table(
        ("column", "how a change is found"),
        (
            (f"`{table}.{name}`", _describe_ways(value, listed["ways"]))
            for table, columns in listed["columns"].items()
            for name, value in columns.items()
        ),
    )


def _describe_ways(value: Any, ways: Mapping[str, Mapping[str, str]]) -> str:
    named, reason = (value["ways"], value["unless"]) if isinstance(value, dict) else (value, "")
    text = "; ".join(ways[name]["says"] for name in named)
    return f"{text or 'not found'}. {reason}" if reason else text


def _extract_first_sentence(text: str) -> str:
    return text.split(". ")[0].removesuffix(".") + "."


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [head, ["---"] * len(head), *rows])


BLOCK_RENDERERS: dict[str, Callable[[], str]] = {
    "tools": render_tools,
    "clients": render_clients,
    "hosts": partial(render_registrations, HOSTS),
    "first_clients": partial(
        render_registrations, [CLIENTS_BY_NAME[name] for name in FIRST_CLIENTS]
    ),
    "settings": render_settings,
    "commands": render_commands,
    "frameworks": partial(render_registrations, FRAMEWORKS),
    "tampers": render_tampers,
}

if __name__ == "__main__":
    main()
