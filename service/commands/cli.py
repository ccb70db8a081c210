"""The `signals` command: parses arguments, runs a command, reports errors in one line."""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TypeAlias

from schemas.operator_error import OperatorError
from schemas.version import VERSION
from schemas.vocabulary import HOUR_MS
from service.commands.argument_types import (
    parse_client,
    parse_expiry,
    parse_overlap,
    parse_time,
    parse_worker_count,
)
from service.commands.command_tree import add_examples, suggest_command
from service.commands.examples import EXAMPLES
from service.config.logs import log_to_standard_error
from service.config.settings import API_KEY_VARIABLE, Settings, SettingsError
from service.terminal.arguments import add_commands
from verifier.report import escape_unprintable

# Each command imports its modules when it runs. With all imports up here, every command took 1.1 s
# and 72 MB; `keys list` takes 0.25 s and 42 MB.

SHELLS = ("bash", "zsh", "fish")
Command = Callable[[argparse.Namespace, Settings], Awaitable[int]]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def wall_clock() -> int:
    """Return the wall clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; an OperatorError is printed in one line, with exit status 1 (2 of some)."""
    parser = _build_parser()
    given = sys.argv[1:] if arguments is None else arguments
    if (suggestion := suggest_command(parser, given)) is not None:
        parser.error(suggestion)
    args = parser.parse_args(given)
    try:
        with asyncio.Runner(loop_factory=_choose_loop_factory(args.command)) as runner:
            return runner.run(_run_command(args.command, args))
    except OperatorError as error:
        # It can quote names of files and texts of a service.
        print(f"signals: {escape_unprintable(str(error))}", file=sys.stderr)
        return int(args.failure_status)
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as shells report it.


def _choose_loop_factory(command: Command) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's for serving, which it speeds up; its import would slow others down."""
    if command is not _serve:
        return None
    from uvloop import new_event_loop

    return new_event_loop


async def _run_command(command: Command, args: argparse.Namespace) -> int:
    settings = Settings.read()
    log_to_standard_error(settings.log_level, settings.log_format)
    if getattr(args, "believe_clock", False):
        settings = settings.model_copy(update={"believe_clock": True})
    return await command(args, settings)


@cache
def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="signals", description="Compute and serve trading signals over MCP and REST."
    )
    parser.add_argument("--version", action="version", version=f"signals {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_compute_commands(commands)
    _add_maintenance_commands(commands)
    _add_client_commands(commands)
    _add_verify_command(commands)
    add_commands(commands, _read_service, _read_feed)
    _add_access_commands(commands)
    _add_completion_command(commands)
    add_examples(parser, EXAMPLES)
    parser.set_defaults(failure_status=1)
    return parser


def _add_compute_commands(commands: Commands) -> None:
    command = _add_command(
        commands, "serve", _serve, "compute every hour, and serve over MCP and REST"
    )
    command.add_argument(
        "--workers",
        type=parse_worker_count,
        default=1,
        metavar="N",
        help="number of serving processes (default 1), besides the one that computes",
    )
    command.add_argument(
        "--single-process",
        action="store_true",
        help="compute in the serving process, for a machine with little memory",
    )
    command.add_argument(
        "--no-compute",
        action="store_false",
        dest="computes",
        help="serve only; another process computes on this database",
    )
    _add_believe_clock_option(command)
    command = _add_command(commands, "compute", _compute, "compute every hour, without serving")
    _add_believe_clock_option(command)
    command = _add_command(
        commands, "replay", _replay, "compute a folder of recorded bars into the store"
    )
    command.add_argument(
        "--bars", type=Path, required=True, metavar="DIR", help="folder of recorded bars"
    )
    command.add_argument(
        "--until",
        type=parse_time,
        metavar="TIME",
        help="last run to compute, an ISO 8601 time, UTC unless it has a zone",
    )
    command = _add_command(
        commands,
        "audit",
        _audit,
        "recompute everything published from the stored bars, and report differences",
    )
    command.add_argument(
        "--public", nargs=argparse.REMAINDER, help="has become `signals verify --answers --url URL`"
    )


def _add_maintenance_commands(commands: Commands) -> None:
    command = _add_command(
        commands, "prune", _prune, "delete rows older than their retention, and old copies"
    )
    _add_believe_clock_option(command)
    command = _add_command(
        commands, "backup", _back_up, "copy the whole store, also while it is in use"
    )
    command.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="new or empty folder; the default is next to the store, named by the time",
    )
    command = _add_command(
        commands, "restore", _restore, "restore a backup to a path where no store exists"
    )
    command.add_argument("folder", type=Path, metavar="DIR", help="folder of the backup")
    command = _add_command(commands, "migrate", _migrate, "move everything to another database")
    command.add_argument(
        "--from", required=True, dest="source", metavar="URL", help="database to move"
    )
    command.add_argument(
        "--to",
        dest="target",
        metavar="URL",
        help="database to move to; the default is SIGNALS_DATABASE_URL",
    )
    command = _add_command(
        commands, "doctor", _run_doctor, "check settings, stores, source, billing and mail"
    )
    command.add_argument(
        "--universe",
        action="store_true",
        help="check each listing of the universe file at the live venues instead",
    )
    log = commands.add_parser("log", help="begin a new log of the feed")
    log_commands = log.add_subparsers(required=True, metavar="ACTION")
    _add_command(
        log_commands,
        "restart",
        _restart_log,
        "begin a new log with another key, if the store no longer has the rows that were signed",
    )


def _add_client_commands(commands: Commands) -> None:
    command = _add_command(
        commands, "connect", _connect, "print how to register the MCP server with a client"
    )
    command.add_argument(
        "client",
        nargs="?",
        type=parse_client,
        metavar="CLIENT",
        help="name of the client; omit it to list all",
    )
    _add_url_option(command)
    command = _add_command(
        commands,
        "stdio",
        _bridge_stdio,
        f"bridge MCP over stdio to a service, with the key in {API_KEY_VARIABLE}",
    )
    _add_url_option(command)


def _add_verify_command(commands: Commands) -> None:
    command = _add_command(
        commands,
        "verify",
        _verify,
        "check that the log of a service contains every row of its feed, and that nothing was "
        f"rewritten since the last time, with the key in {API_KEY_VARIABLE}",
    )
    # 1 says that something was rewritten.
    command.set_defaults(failure_status=2)
    _add_url_option(command)
    command.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="folder of your record; the default is signals/verify/HOST_PORT in XDG_STATE_HOME",
    )
    command.add_argument(
        "--since",
        type=parse_time,
        metavar="TIME",
        help="read the feed after this ISO 8601 time, UTC unless it has a zone; "
        "the default is 30 days",
    )
    command.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="check the rows of this file, answers of /signals or one row per line; the feed is "
        "then read only with --since",
    )
    command.add_argument(
        "--policy", type=Path, metavar="FILE", help="witnesses that must have cosigned"
    )
    command.add_argument("--vkey", metavar="KEY", help="key of the log, instead of the saved one")
    command.add_argument(
        "--proof",
        type=Path,
        metavar="FILE",
        help="check this proof of a row in --rows, without a network",
    )
    command.add_argument(
        "--answers",
        action="store_true",
        help="also check that all answers of the service follow from its feed and its catalog, and "
        "match its OpenAPI document",
    )


def _add_access_commands(commands: Commands) -> None:
    _add_command(
        commands,
        "sign-in",
        _print_sign_in_link,
        "print a link that signs the owner in to the pages of the service, once",
    )
    keys = commands.add_parser("keys", help="create, list, rotate and revoke API keys")
    key_commands = keys.add_subparsers(required=True, metavar="ACTION")
    command = _add_command(
        key_commands, "create", _create_key, "create a key and print it; it is shown only once"
    )
    command.add_argument("--label", required=True, help="name of the key")
    command.add_argument(
        "--expires",
        type=parse_expiry,
        metavar="TIME",
        help="number of days, date (00:00 UTC) or ISO 8601 time; by default it never expires",
    )
    _add_command(key_commands, "list", _list_keys, "list keys, without the keys themselves")
    command = _add_command(key_commands, "revoke", _revoke_key, "revoke a key permanently")
    command.add_argument("id", type=int, metavar="ID", help="id from `signals keys list`")
    command = _add_command(
        key_commands, "rotate", _rotate_key, "replace a key, which then expires; print the new one"
    )
    command.add_argument("id", type=int, metavar="ID", help="id from `signals keys list`")
    command.add_argument(
        "--overlap",
        type=parse_overlap,
        default=24,
        metavar="HOURS",
        help="hours for which the replaced key still works, 0 to 720 (default 24)",
    )
    command = _add_command(
        key_commands, "requests", _list_requests, "list the latest calls of a key, newest first"
    )
    command.add_argument("id", type=int, metavar="ID", help="id from `signals keys list`")
    _add_command(
        key_commands,
        "adopt",
        _adopt_keys,
        "if the store of keys was lost: accept the one that is there now, or a new empty one",
    )
    _add_command(
        commands,
        "access-requests",
        _list_access_requests,
        "list access requests, one JSON object per line",
    )


def _add_completion_command(commands: Commands) -> None:
    command = _add_command(
        commands,
        "completion",
        _print_completion,
        "print the script that completes commands and options in a shell",
    )
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def _add_command(
    commands: Commands,
    name: str,
    command: Command,
    help_text: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(command=command)
    return parser


def _add_believe_clock_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--believe-clock",
        action="store_true",
        help="go on although the clock is more than 180 days after the last run",
    )


def _add_url_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--url",
        metavar="URL",
        help="address of the service or of its MCP endpoint; the default is this machine's",
    )


async def _compute(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.compute_command import compute
    from service.processes.steady_clock import read_boot_time_ms

    return await compute(settings, wall_clock, elapsed=read_boot_time_ms)


async def _serve(args: argparse.Namespace, settings: Settings) -> int:
    from service.processes.steady_clock import read_boot_time_ms

    if args.workers > 1:
        if args.single_process:
            raise SettingsError("--single-process and --workers N exclude each other: choose one")
        # A single serving process needs none of the supervisor's modules.
        from service.processes.supervisor import serve_with_workers

        return await serve_with_workers(
            settings, args.workers, wall_clock, computes=args.computes, elapsed=read_boot_time_ms
        )
    with ExitStack() as stack:
        compute_process = None
        if args.computes and not args.single_process:
            from service.processes.compute_process import ComputeProcess

            # It loads its modules while this process loads those of serving.
            starting = ComputeProcess(settings, wall_clock, read_boot_time_ms)
            compute_process = stack.enter_context(starting)
        from service.commands.serve import serve

        return await serve(
            settings,
            wall_clock,
            computes=args.computes,
            compute_process=compute_process,
            elapsed=read_boot_time_ms,
        )


async def _replay(args: argparse.Namespace, settings: Settings) -> int:
    from compute.indicators.registry import INDICATORS
    from service.commands.replay import replay_bars

    now = wall_clock() if args.until is None else min(args.until, wall_clock())
    return await replay_bars(settings, INDICATORS, args.bars, now)


async def _audit(args: argparse.Namespace, settings: Settings) -> int:
    if args.public is not None:
        raise SettingsError("--public is now `signals verify --answers --url URL`")
    from compute.indicators.registry import INDICATORS
    from service.commands.audit import audit_store

    return await audit_store(settings, INDICATORS)


async def _prune(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.prune import prune_stores

    return await prune_stores(settings, wall_clock)


async def _connect(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.connect import print_registration

    return print_registration(args.client, _parse_service_address(args, settings))


async def _bridge_stdio(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.stdio import bridge_stdio

    return await bridge_stdio(_parse_service_address(args, settings), settings.read_api_key())


async def _verify(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.verify import VerifyOptions, verify_service
    from service.config.state_home import find_verify_folder

    address = _parse_service_address(args, settings)
    folder = args.state or find_verify_folder(address)
    names = (field.name for field in fields(VerifyOptions))
    options = VerifyOptions(**{name: getattr(args, name) for name in names})
    return await verify_service(address, settings.read_api_key(), folder, options, wall_clock)


async def _read_service(args: argparse.Namespace, settings: Settings) -> int:
    from service.terminal.commands import read_service

    return await read_service(args, _parse_service_address(args, settings), settings.read_api_key())


async def _read_feed(args: argparse.Namespace, settings: Settings) -> int:
    if not args.follow:
        return await _read_service(args, settings)
    from service.processes.steady_clock import read_boot_time_ms
    from service.terminal.commands import follow_feed

    return await follow_feed(
        args,
        _parse_service_address(args, settings),
        settings.read_api_key(),
        settings.read_webhook_secret(),
        wall_clock,
        elapsed=read_boot_time_ms,
    )


async def _print_completion(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.completion import print_completion

    return print_completion(_build_parser(), args.shell)


def _parse_service_address(args: argparse.Namespace, settings: Settings) -> str:
    from service.commands.service_address import parse_base_address

    return parse_base_address(settings.address if args.url is None else args.url, "--url")


async def _create_key(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import create_key

    expires_at = None if args.expires is None else args.expires(wall_clock())
    return await create_key(settings, wall_clock, args.label, expires_at)


async def _print_sign_in_link(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.sign_in import print_sign_in_link

    return await print_sign_in_link(settings, wall_clock)


async def _list_keys(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import list_keys

    return await list_keys(settings, wall_clock)


async def _revoke_key(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import revoke_key

    return await revoke_key(settings, wall_clock, args.id)


async def _adopt_keys(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import adopt_keys

    return await adopt_keys(settings)


async def _rotate_key(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import rotate_key

    return await rotate_key(settings, wall_clock, args.id, args.overlap * HOUR_MS)


async def _list_requests(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import list_requests

    return await list_requests(settings, args.id)


async def _list_access_requests(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.access import list_access_requests

    return await list_access_requests(settings)


async def _back_up(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.backup import backup

    return await backup(settings, args.folder, wall_clock)


async def _restore(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.backup import restore

    return await restore(settings, args.folder)


async def _migrate(args: argparse.Namespace, settings: Settings) -> int:
    from compute.indicators.registry import INDICATORS
    from service.commands.migrate import migrate_database

    target = settings if args.target is None else settings.with_database(args.target)
    return await migrate_database(
        settings.with_database(args.source), target, INDICATORS, wall_clock
    )


async def _restart_log(args: argparse.Namespace, settings: Settings) -> int:
    from service.commands.log import restart_log

    return await restart_log(settings, wall_clock)


async def _run_doctor(args: argparse.Namespace, settings: Settings) -> int:
    if args.universe:
        from service.commands.doctor_universe import check_universe

        return await check_universe(settings, wall_clock)
    from service.commands.doctor import run_doctor

    return await run_doctor(settings, wall_clock)
