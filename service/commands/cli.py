"""The `signals` command: parses arguments, and turns the operator's mistakes into one line.

Each command imports what it needs when it runs, so that none waits for the libraries of another.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from schemas.operator_error import OperatorError
from service.commands.argument_types import client, days, moment, workers
from service.config.logs import log_to_standard_error
from service.config.settings import CLIENTS_VARIABLE, Settings, SettingsError

PUBLIC_AUDIT_DAYS = 30
Command = Callable[[argparse.Namespace, Settings], Awaitable[int]]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def wall_clock() -> int:
    """Return the wall clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; mistakes of the operator are one line and exit status 1."""
    given = _parser().parse_args(arguments)
    log_to_standard_error()
    try:
        return asyncio.run(_run(given.command, given))
    except OperatorError as error:
        print(f"signals: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


async def _run(command: Command, given: argparse.Namespace) -> int:
    return await command(given, Settings.read())


@cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="signals", description="The signal service.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_computing(commands)
    _add_upkeep(commands)
    _add_clients(commands)
    _add_access(commands)
    return parser


def _add_computing(commands: Commands) -> None:
    command = _add(commands, "serve", _serve, "compute every hour and serve over MCP and REST")
    command.add_argument(
        "--workers",
        type=workers,
        default=1,
        metavar="N",
        help="processes that serve, beside one that computes; default is 1 that does both",
    )
    command.add_argument(
        "--no-compute",
        action="store_false",
        dest="computes",
        help="serve alone what other processes on the same database compute",
    )
    _add(commands, "compute", _compute, "compute every hour without serving")
    command = _add(commands, "replay", _replay, "step a folder of recorded bars into the store")
    command.add_argument("--bars", type=Path, required=True, metavar="DIR")
    command.add_argument("--until", type=moment, metavar="TIME", help="ISO 8601 with a zone")
    command = _add(commands, "audit", _audit, "recompute everything published from stored bars")
    command.add_argument(
        "--public",
        metavar="URL",
        help=f"instead, check through a service's REST interface, with the key in "
        f"{CLIENTS_VARIABLE}, that its views agree with each other",
    )
    command.add_argument(
        "--days",
        type=days,
        metavar="N",
        help=f"with --public: days of feed to read, 1 to 365, default {PUBLIC_AUDIT_DAYS}",
    )


def _add_upkeep(commands: Commands) -> None:
    _add(commands, "prune", _prune, "delete rows beyond their retention")
    command = _add(commands, "backup", _backup, "copy the whole store while it is in use")
    command.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="a new or empty folder; default is one beside the store, named with the time",
    )
    command = _add(commands, "restore", _restore, "put a backup where no store is")
    command.add_argument("folder", type=Path, metavar="DIR")
    command = _add(commands, "migrate", _migrate, "move everything into another database")
    command.add_argument(
        "--from", required=True, dest="source", metavar="URL", help="the database to move"
    )
    command.add_argument(
        "--to", dest="target", metavar="URL", help="default is that of SIGNALS_DATABASE_URL"
    )
    _add(commands, "doctor", _doctor, "say what is well and what must be fixed")


def _add_clients(commands: Commands) -> None:
    command = _add(
        commands, "connect", _connect, "print what registers the MCP server with a client"
    )
    command.add_argument(
        "client", nargs="?", type=client, metavar="CLIENT", help="without: list them"
    )
    _add_url(command)
    command = _add(
        commands,
        "stdio",
        _stdio,
        f"speak MCP over stdio for a service, with the key in {CLIENTS_VARIABLE}",
    )
    _add_url(command)


def _add_access(commands: Commands) -> None:
    keys = commands.add_parser("keys", help="create, list and revoke API keys")
    key_commands = keys.add_subparsers(required=True, metavar="ACTION")
    command = _add(key_commands, "create", _create_key, "print a new key, once")
    command.add_argument("--label", required=True)
    _add(key_commands, "list", _list_keys, "list keys, without the keys themselves")
    command = _add(key_commands, "revoke", _revoke_key, "revoke a key for good")
    command.add_argument("id", type=int, metavar="ID")
    _add(
        commands,
        "access-requests",
        _access_requests,
        "list who asks for terms of their own, one JSON object a line",
    )


def _add(
    commands: Commands,
    name: str,
    command: Command,
    text: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(command=command)
    return parser


def _add_url(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--url",
        metavar="URL",
        help="the service's address or its MCP endpoint; default is what `signals serve` has here",
    )


async def _compute(given: argparse.Namespace, settings: Settings) -> int:
    from compute.indicators.registry import INDICATORS
    from service.commands.compute_command import compute

    return await compute(settings, INDICATORS, wall_clock)


async def _serve(given: argparse.Namespace, settings: Settings) -> int:
    from compute.indicators.registry import INDICATORS

    if given.workers > 1:
        # One process alone needs none of what supervises others.
        from service.processes.supervisor import serve_by_workers

        return await serve_by_workers(
            settings, given.workers, INDICATORS, wall_clock, computes=given.computes
        )
    from service.commands.serve import serve

    return await serve(settings, INDICATORS, wall_clock, computes=given.computes)


async def _replay(given: argparse.Namespace, settings: Settings) -> int:
    from compute.indicators.registry import INDICATORS
    from service.commands.replay import replay

    now = wall_clock() if given.until is None else min(given.until, wall_clock())
    return await replay(settings, INDICATORS, given.bars, now)


async def _audit(given: argparse.Namespace, settings: Settings) -> int:
    if given.public is not None:
        return await _audit_in_public(given, settings)
    if given.days is not None:
        raise SettingsError("--days goes with --public URL; an audit of the store reads it whole")
    from compute.indicators.registry import INDICATORS
    from service.commands.audit import audit

    return await audit(settings, INDICATORS)


async def _audit_in_public(given: argparse.Namespace, settings: Settings) -> int:
    from service.public_audit.command import audit_in_public

    read = given.days or PUBLIC_AUDIT_DAYS
    return await audit_in_public(given.public, settings.clients_api_key(), read)


async def _prune(given: argparse.Namespace, settings: Settings) -> int:
    from service.commands.prune import prune

    return await prune(settings, wall_clock)


async def _connect(given: argparse.Namespace, settings: Settings) -> int:
    from service.commands.connect import connect

    return connect(given.client, _address(given, settings))


async def _stdio(given: argparse.Namespace, settings: Settings) -> int:
    from service.commands.stdio import bridge

    return await bridge(_address(given, settings), settings.clients_api_key())


def _address(given: argparse.Namespace, settings: Settings) -> str:
    from service.commands.service_address import base_address

    return base_address(settings.address if given.url is None else given.url, "--url")


async def _create_key(given: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import create_key

    return await create_key(settings, wall_clock, given.label)


async def _list_keys(given: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import list_keys

    return await list_keys(settings)


async def _revoke_key(given: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import revoke_key

    return await revoke_key(settings, wall_clock, given.id)


async def _access_requests(given: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import list_access_requests

    return await list_access_requests(settings)


async def _backup(given: argparse.Namespace, settings: Settings) -> int:
    from service.commands.backup import backup

    return await backup(settings, given.folder, wall_clock)


async def _restore(given: argparse.Namespace, settings: Settings) -> int:
    from service.commands.backup import restore

    return await restore(settings, given.folder)


async def _migrate(given: argparse.Namespace, settings: Settings) -> int:
    from compute.indicators.registry import INDICATORS
    from service.commands.migrate import migrate

    target = settings if given.target is None else settings.on(given.target)
    return await migrate(settings.on(given.source), target, INDICATORS, wall_clock)


async def _doctor(given: argparse.Namespace, settings: Settings) -> int:
    from service.commands.doctor import doctor

    return await doctor(settings, wall_clock)
