"""The `signals` command: parses arguments, runs a command, reports errors in one line."""

import argparse
import asyncio
import difflib
import errno
import inspect
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import ArgumentsError, OperatorError
from schemas.version import VERSION
from schemas.vocabulary import HOUR_MS
from service.commands.command_table import (
    COMMANDS,
    EXAMPLES,
    GROUPS,
    HEADINGS,
    choose_server,
)
from service.commands.console import echo
from service.config.logs import log_to_standard_error
from service.config.settings import (
    NOTIFY_VARIABLE,
    WEBHOOK_SECRET_VARIABLE,
    Settings,
    find_proxy,
)
from service.processes.steady_clock import read_boot_time_ms
from verifier.report import escape_unprintable

if TYPE_CHECKING:
    from mcp_server.registration import Client

# Below this similarity, from 0 to 1, argparse's list of all commands helps more.
MIN_SIMILARITY = 0.6
# The reader of a pipe has gone, or the disk of a file is full.
OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def wall_clock() -> int:
    """Return the wall clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; an OperatorError is printed in one line, with exit status 1 or 2."""
    parser = _build_parser()
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        parser.print_help()
        return 0
    if (suggestion := suggest_command(parser, given)) is not None:
        parser.error(suggestion)
    args = parser.parse_args(given)
    # For serving only: others would wait for its import and gain nothing.
    loop = import_module("uvloop").new_event_loop if args.run is choose_server else None
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            status = runner.run(_run_command(args))
        sys.stdout.flush()
        return status
    except OperatorError as error:
        # It can quote names of files and texts of a service.
        print(f"signals: {escape_unprintable(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, ArgumentsError) else int(args.failure_status)
    except SystemExit:
        # The library that prints tables ends so if its pipe was closed. Of `verify`, 1 would say
        # that something was rewritten.
        return int(args.failure_status)
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as shells report it.
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS:
            raise
        # The interpreter flushes standard output again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return int(args.failure_status)
        print(f"signals: the output cannot be written: {error.strerror}", file=sys.stderr)
        return int(args.failure_status)


async def _run_command(args: Namespace) -> int:
    settings = Settings.read()
    log_to_standard_error(settings.log_level, settings.log_format)
    if getattr(args, "believe_clock", False):
        settings = settings.model_copy(update={"believe_clock": True})
    if getattr(args, "live", False):
        settings = settings.model_copy(update={"source": "live"})
    module, _, name = (args.run if isinstance(args.run, str) else args.run(args)).partition(":")
    function = getattr(import_module(module), name)
    values = _list_values(args, settings)
    # A parameter without a value keeps its default, such as the clock of a test.
    names = inspect.signature(function).parameters
    status = function(**{name: values[name]() for name in names if name in values})
    return int(await status if inspect.isawaitable(status) else status)


def _list_values(args: Namespace, settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return what parameters of a command's function get, by their names."""
    return {
        **{name: partial(getattr, args, name) for name in vars(args)},
        "args": lambda: args,
        "parser": _build_parser,
        "settings": lambda: settings,
        "clock": lambda: wall_clock,
        "elapsed": lambda: read_boot_time_ms,
        "address": lambda: parse_base_address(
            settings.address if args.url is None else args.url, "--url"
        ),
        "find_proxy": lambda: find_proxy,
        "api_key": settings.read_api_key,
        "webhook_secret": partial(settings.read_client_variable, WEBHOOK_SECRET_VARIABLE),
        "notify_url": partial(settings.read_client_variable, NOTIFY_VARIABLE),
        "folder": lambda: args.folder if "folder" in args else args.state,
        "wall_clock": lambda: wall_clock,
        "now": lambda: wall_clock() if args.until is None else min(args.until, wall_clock()),
        "source": lambda: settings.with_database(args.source),
        "target": lambda: settings if args.target is None else settings.with_database(args.target),
        "expires_at": lambda: None if args.expires is None else args.expires(wall_clock()),
        "overlap_ms": lambda: args.overlap * HOUR_MS,
    }


def parse_base_address(text: str, option: str) -> str:
    """Return the base address of a service, given with or without /api/v1 or an MCP endpoint."""
    import httpx2

    from verifier.client import API_PATH, MCP_PATH, OAUTH_MCP_PATH

    # The message of an error never repeats the address: it may hold a secret.
    address = text.strip().rstrip("/")
    for path in (MCP_PATH, API_PATH, OAUTH_MCP_PATH):
        address = address.removesuffix(path).rstrip("/")
    try:
        parts = httpx2.URL(address)
    except httpx2.InvalidURL as error:
        raise ArgumentsError(f"{option} is not a valid address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.host or (parts.port or 0) > 65535:
        raise ArgumentsError(f"{option} must be an http:// or https:// address")
    if parts.userinfo or parts.query or parts.fragment:
        raise ArgumentsError(f"{option} must be an address without user name, query and fragment")
    return address


class OverviewFormatter(argparse.RawDescriptionHelpFormatter):
    """Formats the help of `signals` with its commands under headings."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        format_one = super()._format_action
        commands = {one.dest: format_one(one) for one in action._choices_actions}
        return "\n".join(
            f"{heading}:\n{''.join(commands[name] for name in names)}"
            for heading, names in HEADINGS.items()
        )


@cache
def _build_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="signals", description="Compute and serve trading signals over MCP and REST."
    )
    parser.add_argument("--version", action="version", version=f"signals {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    groups: dict[str, Any] = {"": commands}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        if group not in groups:
            groups[group] = commands.add_parser(group, help=GROUPS[group]).add_subparsers(
                required=True, metavar="ACTION"
            )
        added = groups[group].add_parser(
            name, help=command.help_text, description=command.help_text
        )
        exclusive = defaultdict[str, Any](added.add_mutually_exclusive_group)
        for names, excluding, named in command.options:
            (added if excluding is None else exclusive[excluding]).add_argument(*names, **named)
        added.set_defaults(
            run=command.run, failure_status=command.failure_status, **command.defaults
        )
    for one in (parser, *walk_commands(parser)):
        if one.prog in EXAMPLES:
            lines = "".join(f"  {line}\n" for line in EXAMPLES[one.prog])
            one.epilog = f"examples:\n{lines}"
            one.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(failure_status=1)
    parser.formatter_class = OverviewFormatter
    return parser


def walk_commands(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    """Yield the parsers of all commands; a group such as `keys` yields only its commands."""
    subcommands = _get_subcommands(parser)
    if not subcommands:
        yield parser
    for command in subcommands.values():
        yield from walk_commands(command)


def suggest_command(parser: ArgumentParser, arguments: Sequence[str]) -> str | None:
    """Return what to do about a misspelt command, None if there is none or nothing is similar."""
    subcommands = _get_subcommands(parser)
    if not subcommands or not arguments or arguments[0].startswith("-"):
        return None
    name = arguments[0]
    if name in subcommands:
        return suggest_command(subcommands[name], arguments[1:])
    nearest = difflib.get_close_matches(name, subcommands, n=1, cutoff=MIN_SIMILARITY)
    if not nearest:
        return None
    return f"{name!r} is not a command; did you mean `{subcommands[nearest[0]].prog}`?"


def _get_subcommands(parser: ArgumentParser) -> Mapping[str, ArgumentParser]:
    # argparse has no public way to list subcommands.
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return groups[0].choices if groups else {}


def print_completion(parser: ArgumentParser, shell: str) -> int:
    """Print the script that completes commands and options in bash, zsh or fish."""
    import shtab

    for command in walk_commands(parser):
        for action in command._actions:
            if action.type is Path:
                is_folder = action.metavar == "DIR"
                action.complete = shtab.DIRECTORY if is_folder else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell))
    return 0


def print_registration(client: "Client | None", address: str) -> int:
    """Print the configuration that registers a service with a client, or list all clients."""
    from access.oauth.parameters import can_serve_oauth
    from mcp_server.registration import CLIENTS

    if client is None:
        for choice in CLIENTS:
            print(choice.name, f"{choice.title}, {choice.location}", sep="\t")
        return 0
    echo(client.instructions)
    # It names the variable of the key, never the key: output is pasted and committed.
    print(client.render_lines(address), end="")
    if client.link:
        echo(f"Or open this link to install it: {client.render_link(address)}")
    if client.signs_in and not can_serve_oauth(address):
        echo("This address serves no OAuth, which needs https. Register a client with a key.")
    echo(f"{client.tried_with} The format: {client.documentation}")
    return 0
