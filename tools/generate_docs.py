"""Updates the generated blocks of the documentation: `python -m tools.generate_docs`.

A block is the text between `<!-- generated: NAME -->` and `<!-- end -->`. `make docs` runs it too.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, get_args

from pydantic import BaseModel, SecretStr

from access.contact import MAX_REQUESTS
from access.members import MAX_LIVE_KEYS, MAX_NEW_KEYS_PER_DAY, MAX_ROTATIONS_PER_DAY
from access.sign_in import LINK_MINUTES, SESSION_MS
from access.throttle import DEFAULT_LIMIT
from mcp_server.registration import CLIENTS, CLIENTS_BY_NAME, Client
from mcp_server.tools.tool_table import TOOLS
from rest_shim.endpoints import ENDPOINTS
from rest_shim.error_catalog import ERROR_MEANINGS
from schemas.catalog import CatalogQuery, CatalogResponse
from schemas.confluence import ConfluenceQuery, ConfluenceResponse
from schemas.errors import ErrorBody
from schemas.flips import FlipsQuery, FlipsResponse
from schemas.log_reads import MAX_LEAVES
from schemas.purchase import (
    AccessRequestBody,
    ActiveClaim,
    CheckoutBody,
    CheckoutResponse,
    ClaimBody,
    PendingClaim,
)
from schemas.query import MAX_LIST_CHARS, MAX_NAME_CHARS
from schemas.signals import Pagination, Signal, SignalsQuery
from schemas.state import StateQuery, StateResponse
from schemas.stats import StatsResponse
from schemas.usage import UsageResponse
from schemas.vocabulary import (
    DAY_MS,
    RETENTION_MS,
    Action,
    AssetClass,
    ChangeType,
    Direction,
    IndicatorId,
    LoggedId,
    Reading,
    StoredKey,
    Tier,
    Timeframe,
)
from service.commands.cli import _build_parser, walk_commands
from service.config.settings import PREFIX, Settings
from service.http.server import MAX_FRAMING_BYTES
from serving.fair_share import MAX_CALLS
from serving.http import (
    LONG_TARGETS,
    MAX_BODY_BYTES,
    MAX_FORM_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADER_BYTES,
    MAX_PATH_BYTES,
    MAX_QUERY_FIELDS,
    MAX_TARGET_BYTES,
    MAX_WEBHOOK_BYTES,
)
from serving.json_schema import Schema, build_input_schema
from tools.output_schemas import build_output_schema


class FieldRow(NamedTuple):
    """One field; `[]` in its path stands for each item of a list, `*` for each key of an object."""

    path: str
    type: str
    accepted: str
    is_required: bool
    description: str


def walk_field_rows(schema: Schema, prefix: str = "") -> Iterator[FieldRow]:
    """Yield a row for every field of an object schema, at any depth."""
    for name, part in schema.get("properties", {}).items():
        path = prefix + name
        yield FieldRow(
            path,
            _name_type(part),
            format_accepted(part),
            name in schema.get("required", ()),
            _find_description(part),
        )
        yield from _walk_nested_rows(part, path)


def _walk_nested_rows(part: Schema, path: str) -> Iterator[FieldRow]:
    for branch in _list_branches(part):
        yield from walk_field_rows(branch, f"{path}.")
        for key, step in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(branch.get(key), dict):
                yield from _walk_nested_rows(branch[key], path + step)


def _list_branches(part: Schema) -> list[Schema]:
    """Return the alternatives of a schema; the schema itself if it has none."""
    branches: list[Schema] = part.get("anyOf") or part.get("oneOf") or [part]
    return branches


def _find_description(part: Schema) -> str:
    """Return a schema's description, else that of its object or of its list items."""
    objects = [
        each for branch in _list_branches(part) for each in (branch, branch.get("items", {}))
    ]
    descriptions = [one["description"] for one in (part, *objects) if "description" in one]
    return " ".join(descriptions[0].split()) if descriptions else ""


def _name_type(part: Schema) -> str:
    return " or ".join(dict.fromkeys(_name_branch_type(branch) for branch in _list_branches(part)))


def _name_branch_type(branch: Schema) -> str:
    if branch.get("type") == "array":
        return f"list of {_name_type(branch['items'])}s"
    return str(branch.get("type", "any value"))


def format_accepted(part: Schema) -> str:
    """Return the allowed values or range, empty if the type says enough."""
    bounds = (_format_bounds(branch) for branch in _list_branches(part))
    return "; ".join(dict.fromkeys(filter(None, bounds)))


def _format_bounds(branch: Schema) -> str:
    if isinstance(branch.get("items"), dict):
        return format_accepted(branch["items"])
    if isinstance(branch.get("additionalProperties"), dict):
        sides = (branch.get("propertyNames", {}), branch["additionalProperties"])
        return " to ".join(filter(None, map(format_accepted, sides)))
    if "enum" in branch or "const" in branch:
        return ", ".join(map(str, branch.get("enum") or [branch["const"]]))
    if "format" in branch:
        return str(branch["format"])
    return _format_range(branch)


def _format_range(branch: Schema) -> str:
    if "maxLength" in branch:
        return f"at most {branch['maxLength']} characters"
    low, high = branch.get("minimum"), branch.get("maximum")
    if low is None or high is None:
        return "" if low is None else f"at least {low}"
    return f"{low} to {high}"


ROOT = Path(__file__).parents[1]
NAMES = (
    "commands",
    "connect",
    "contract",
    "settings",
)
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES))
BLOCK_PATTERN = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# The README is short: a command-line host and an editor stand for the rest.
FIRST_CLIENTS = ("claude-code", "cursor")
MAX_USAGE_CHARS = 120
ADDRESS = "http://127.0.0.1:8000"

# The names of vocabularies in tables of fields, by their values.
TYPES = {
    ", ".join(get_args(values)): name
    for name, values in {
        "indicator id": IndicatorId,
        "logged id": LoggedId,
        "stored key": StoredKey,
        "asset class": AssetClass,
        "timeframe": Timeframe,
        "reading": Reading,
        "direction": Direction,
        "tier": Tier,
        "change type": ChangeType,
        "action": Action,
    }.items()
}
FORMATS = ("date", "date-time", "email", "uri")
RESPONSES: dict[str, type[BaseModel]] = {
    "signal": Signal,
    "pagination": Pagination,
    "state": StateResponse,
    "confluence": ConfluenceResponse,
    "flips": FlipsResponse,
    "catalog": CatalogResponse,
    "stats": StatsResponse,
    "checkout": CheckoutResponse,
    "active_claim": ActiveClaim,
    "pending_claim": PendingClaim,
    "usage": UsageResponse,
    "error": ErrorBody,
}
REQUESTS: dict[str, type[BaseModel]] = {
    "state": StateQuery,
    "signals": SignalsQuery,
    "confluence": ConfluenceQuery,
    "flips": FlipsQuery,
    "catalog": CatalogQuery,
    "checkout": CheckoutBody,
    "claim": ClaimBody,
    "access_request": AccessRequestBody,
}
# Fields that another table or page lists, by the start of their path.
HIDDEN_FIELDS = re.compile(
    r"meta\b|query\.|alerts_tier\b|board\.|results\[\]\.(changes|last_bar)\.|tiers\.|coverage\.|"
    r"cadence\.|legacy_indicator_keys\[\]\.|universe_tier\.by_\w+\[|next_step\.|how_to_get_access\."
)


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
                tool.title,
            )
            for tool in TOOLS
        ),
    )


def render_clients() -> str:
    """Return the table of clients: the documentation, the name, and the version tried of each."""
    return _render_table(
        ("client", "name", "tried"),
        (
            (f"[{client.title}]({client.documentation})", f"`{client.name}`", client.tried or "no")
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
    """Return the table of commands: the usage and the purpose of each."""
    return _render_table(
        ("command", "purpose"),
        (
            (f"`{_format_usage(command)}`", _format_sentence(command.description or ""))
            for command in walk_commands(_build_parser())
        ),
    )


def _format_usage(command: argparse.ArgumentParser) -> str:
    """Return the usage in one line, without options."""
    arguments = [
        one
        for one in command._actions
        if (one.required or not one.option_strings) and not isinstance(one, argparse._HelpAction)
    ]
    # `format_usage` would wrap at the width of the terminal, so the page would depend on it.
    formatter = argparse.HelpFormatter(command.prog, width=MAX_USAGE_CHARS)
    formatter.add_usage(None, arguments, [], prefix="")
    # Python 3.14 colours it on a terminal.
    return re.sub(r"\x1b\[[\d;]*m", "", formatter.format_help()).strip()


def _format_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def render_types() -> str:
    """Return the table of the vocabularies that tables of fields name."""
    return _render_table(
        ("type", "values"), ((name, _format_values(values)) for values, name in TYPES.items())
    )


def render_fields(model: type[BaseModel]) -> str:
    """Return the table of the fields of a response."""
    rows = walk_field_rows(build_output_schema(model))
    return _render_fields("field", rows, is_response=True)


def render_parameters(query: type[BaseModel]) -> str:
    """Return the table of the arguments of an endpoint."""
    rows = walk_field_rows(build_input_schema(query))
    return _render_fields("parameter", rows, is_response=False)


def _render_fields(head: str, rows: Iterable[FieldRow], *, is_response: bool) -> str:
    shown = [row for row in rows if not HIDDEN_FIELDS.match(row.path)]
    cells = (
        (row.path, _format_type(row, is_response=is_response), row.description)
        for row in shown
        # The paths of its fields name an object.
        if row.type != "object"
        or not row.is_required
        or not any(other.path.startswith(f"{row.path}.") for other in shown)
    )
    # Neighbours that differ only in their names share a row.
    return _render_table(
        (head, "type", "meaning"),
        (
            (", ".join(f"`{path}`" for path, _, _ in group), type_, description)
            for (type_, description), group in groupby(cells, key=lambda cell: cell[1:])
        ),
    )


def _format_type(row: FieldRow, *, is_response: bool) -> str:
    """Return the type of a field, its accepted values, and if it is optional or required."""
    text = row.type
    if row.type == "object":
        names = [TYPES[part] for part in row.accepted.split(" to ") if part in TYPES]
        text = f"object, {' to '.join(names)}" if names else text
    elif row.type in ("integer", "number") and " to " in row.accepted:
        text = f"{row.type}, {row.accepted}"
    elif "string" in row.type and row.accepted and not row.accepted.startswith("at most"):
        is_format = row.accepted in FORMATS
        values = row.accepted if is_format else _format_values(row.accepted)
        text = row.type.replace("string", TYPES.get(row.accepted, values))
    notes = {(True, False): ", optional", (False, True): ", required"}
    return text + notes.get((is_response, row.is_required), "")


def _format_values(accepted: str) -> str:
    return ", ".join(f"`{value}`" for value in accepted.split(", "))


def render_errors() -> str:
    """Return the table of the statuses and values of `error`."""
    return _render_table(
        ("status", "`error`", "cause"),
        ((str(one.status), f"`{one.error}`", one.cause) for one in ERROR_MEANINGS),
    )


def render_limits() -> str:
    """Return the table of limits that clients meet."""
    daily_limit = Settings.model_fields["daily_limit"].default
    anonymous = f"{DEFAULT_LIMIT.attempts} within {DEFAULT_LIMIT.window_s} seconds"
    retention = " and ".join(f"{ms // DAY_MS} days (`{tier}`)" for tier, ms in RETENTION_MS.items())
    return _render_table(
        ("limit", "value"),
        (
            ("calls of a key, by UTC day", f"{daily_limit}, unless the operator sets another"),
            (
                "calls of a key in progress, in a serving process",
                f"{MAX_CALLS}; a further one waits about a second, then gets 429",
            ),
            (
                "calls with `as_of`",
                "one is read at a time, keys in turns; "
                "a repeated one is answered from memory until the next run",
            ),
            (
                "checkouts, access requests, sign-in links, OAuth requests, each by client address",
                f"{anonymous}, unless the operator sets another; more for larger networks",
            ),
            ("stored access requests", f"{MAX_REQUESTS}, then 503"),
            (
                "live keys of a membership; new ones in 24 hours",
                _join(MAX_LIVE_KEYS, MAX_NEW_KEYS_PER_DAY),
            ),
            ("rotations of a membership's keys in 24 hours", str(MAX_ROTATIONS_PER_DAY)),
            (
                "time to use a sign-in link; to the end of a session",
                f"{LINK_MINUTES} minutes; {SESSION_MS // DAY_MS} days",
            ),
            (
                "a `claim_token` that is not redeemed",
                "deleted 90 days after its checkout ended unpaid",
            ),
            (
                "a request's body (400 in 4.11 to 4.13); a form; a processor's notification",
                _join(*map(_format_bytes, (MAX_BODY_BYTES, MAX_FORM_BYTES, MAX_WEBHOOK_BYTES))),
            ),
            ("chunk heads and trailers of a body", _format_bytes(MAX_FRAMING_BYTES)),
            (
                "a request's path; with its query",
                _join(_format_bytes(MAX_PATH_BYTES), _format_bytes(MAX_TARGET_BYTES))
                + f" in at most {MAX_QUERY_FIELDS} fields; "
                + "; ".join(f"{_format_bytes(n)} of `{path}`" for path, n in LONG_TARGETS.items()),
            ),
            (
                "a header that the service reads; the whole head",
                _join(_format_bytes(MAX_HEADER_BYTES), _format_bytes(MAX_HEAD_BYTES)),
            ),
            ("`ticker`; `indicator` and times", f"{MAX_LIST_CHARS}; {MAX_NAME_CHARS} characters"),
            ("leaves of the log in a page", str(MAX_LEAVES)),
            ("rows of the feed", retention),
        ),
    )


def _join(*values: object) -> str:
    return "; ".join(map(str, values))


def _format_bytes(size: int) -> str:
    return f"{size >> 10} KiB"


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without spaces around cells, which a limit of words would count."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"|{'|'.join(cells)}|\n" for cells in lines)


BLOCK_RENDERERS: dict[str, Callable[[], str]] = {
    "tools": render_tools,
    "clients": render_clients,
    "first_clients": partial(
        render_registrations, [CLIENTS_BY_NAME[name] for name in FIRST_CLIENTS]
    ),
    "settings": render_settings,
    "commands": render_commands,
    "types": render_types,
    **{f"fields_{name}": partial(render_fields, model) for name, model in RESPONSES.items()},
    **{f"parameters_{name}": partial(render_parameters, model) for name, model in REQUESTS.items()},
    "errors": render_errors,
    "limits": render_limits,
}

if __name__ == "__main__":
    main()
