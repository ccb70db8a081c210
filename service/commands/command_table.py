"""The table of commands: what each is called, takes and runs, and examples for its help.

It imports nothing that a command needs: with all imports up here, every command took 1.1 s and
72 MB; `keys list` takes 0.25 s and 42 MB.
"""

import argparse
import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from schemas.vocabulary import (
    DAY_MS,
    INDICATOR_IDS,
    TIMEFRAMES,
    AssetClass,
    Direction,
    Reading,
    Side,
    Tier,
)
from service.config.settings import API_KEY_VARIABLE, NOTIFY_VARIABLE, SettingsError

MAX_EXPIRY_DAYS = 3650
# The largest integer of both databases.
MAX_KEY_ID = 2**63 - 1
MAX_OVERLAP_HOURS = 720
READ_SERVICE = "service.terminal.commands:read_service"

# The function that a command runs, as MODULE:NAME, or what chooses it by the arguments. Its
# parameters get the values of their names: of the settings, of the arguments, or as `main` says.
Run = str | Callable[[Namespace], str]
# What `add_argument` takes, and the name of the group of options that exclude it, if any.
Option = tuple[tuple[str, ...], str | None, Mapping[str, Any]]


class Command(NamedTuple):
    """A command, such as `keys list`; `failure_status` is its exit status after an error.

    `defaults` are further values that `run` gets with the arguments.
    """

    name: str
    help_text: str
    run: Run
    options: tuple[Option, ...] = ()
    failure_status: int = 1
    defaults: Mapping[str, Any] = {}


def parse_time(text: str) -> int:
    """Parse an ISO 8601 time, in UTC unless it has a zone; return epoch milliseconds."""
    try:
        time = datetime.fromisoformat(text)
        return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"must be an ISO 8601 time, YYYY-MM-DDThh:mm:ssZ, not {text!r}"
        ) from None


def parse_expiry(text: str) -> Callable[[int], int]:
    """Parse a number of days, a date or a time; return a function from now to epoch ms."""
    if text.isdecimal() and 1 <= int(text) <= MAX_EXPIRY_DAYS:
        return lambda now: now + int(text) * DAY_MS
    try:
        at = parse_time(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"must be a number of days from 1 to {MAX_EXPIRY_DAYS}, a date YYYY-MM-DD, or "
            f"an ISO 8601 time, YYYY-MM-DDThh:mm:ssZ, not {text!r}"
        ) from None
    return lambda now: at


def parse_count(least: int, most: int | None, accepted: str) -> Callable[[str], int]:
    """Return a parser of whole numbers; `accepted` says which it accepts."""

    def parse(text: str) -> int:
        if not (text.isdecimal() and int(text) >= least and (most is None or int(text) <= most)):
            raise argparse.ArgumentTypeError(f"must be {accepted}, not {text!r}")
        return int(text)

    return parse


def parse_condition(text: str) -> int:
    """Parse a condition such as confluence>=5; return the number of indicators."""
    if (found := re.fullmatch(r"confluence\s*>=\s*([1-7])", text.strip())) is None:
        raise argparse.ArgumentTypeError(
            f"must be 'confluence>=N', with a number of indicators from 1 to 7, not {text!r}"
        )
    return int(found[1])


def parse_client(name: str) -> object:
    """Return the client with this name; see `signals connect` for the names."""
    from mcp_server.registration import CLIENTS_BY_NAME

    if name not in CLIENTS_BY_NAME:
        names = ", ".join(map(repr, CLIENTS_BY_NAME))
        raise argparse.ArgumentTypeError(f"invalid choice: {name!r} (choose from {names})")
    return CLIENTS_BY_NAME[name]


def option(*names: str, help_text: str, group: str | None = None, **named: Any) -> Option:
    """Return an argument of a command; of a `group`, only one may be given."""
    return names, group, {"help": help_text, **named}


def query_option(
    parameter: str, help_text: str, metavar: str, choices: tuple[str, ...] | None = None
) -> Option:
    """Return an option that is an argument of a call, unchecked unless it has choices."""
    text = f"{help_text}: {', '.join(choices)}" if choices else help_text
    return option(
        "--" + parameter.replace("_", "-"), help_text=text, metavar=metavar, choices=choices
    )


def read_command(
    name: str,
    help_text: str,
    query_options: tuple[Option, ...],
    others: tuple[Option, ...] = (),
    run: Run = READ_SERVICE,
) -> Command:
    """Return a command that reads a service."""
    parameters = [names[0][2:].replace("-", "_") for names, _, _ in query_options]
    defaults = {"view": name, "parameters": parameters}
    return Command(
        name, help_text, run, (*query_options, *READ_OPTIONS, *others), defaults=defaults
    )


def choose_server(args: Namespace) -> str:
    """Return what serves: a single serving process, or several workers."""
    if args.workers == 1:
        return "service.processes.child_process:serve_beside"
    if args.single_process:
        raise SettingsError("--single-process and --workers N exclude each other: choose one")
    return "service.commands.serve:serve_with_workers"


def choose_feed(args: Namespace) -> str:
    """Return what prints the feed: a page, all of it, or what comes until it is stopped."""
    if args.follow:
        return "service.terminal.commands:follow_feed"
    return "service.terminal.commands:read_whole_feed" if args.all else READ_SERVICE


BELIEVE_CLOCK = option(
    "--believe-clock",
    action="store_true",
    help_text="go on although the clock is more than 180 days after the last run",
)
LIVE = option(
    "--live", action="store_true", help_text="use live market data; sets SIGNALS_SOURCE=live"
)
URL = option(
    "--url",
    metavar="URL",
    help_text="address of the service or of its MCP endpoint; the default is this machine's",
)
READ_OPTIONS = (
    option(
        "--url", metavar="URL", help_text="address of the service; the default is this machine's"
    ),
    option(
        "--json", action="store_true", group="format", help_text="print the JSON of the service"
    ),
    option("--csv", action="store_true", group="format", help_text="print CSV, one record per row"),
)
TIMEFRAME = query_option("timeframe", "only this timeframe", "TF", TIMEFRAMES)
INDICATOR = query_option("indicator", "only this indicator", "ID", INDICATOR_IDS)
ASSET_CLASS = query_option(
    "asset_class", "only assets of this class", "CLASS", get_args(AssetClass)
)
TICKER = query_option("ticker", "only these tickers, separated by commas", "TICKERS")
AS_OF = query_option("as_of", "readings as served at this past time, ISO 8601", "TIME")
FILTERS = (
    *(TIMEFRAME, INDICATOR),
    query_option("direction", "only readings in this direction", "DIR", get_args(Reading)),
    *(ASSET_CLASS, AS_OF),
)
KEY_ID = option(
    "key_id",
    type=parse_count(0, MAX_KEY_ID, "an id from `signals keys list`"),
    metavar="ID",
    help_text="id from `signals keys list`",
)
AS_JSON = option(
    "--json",
    action="store_true",
    dest="as_json",
    help_text="print one JSON object per line instead of a table",
)
GROUPS: Final = {
    "log": "begin a new log of the feed",
    "keys": "create, list, rotate and revoke API keys",
}
# The headings of the help, with the commands and groups below each.
HEADINGS: Final = {
    "run a service": (
        *("serve", "compute", "doctor", "backup", "restore", "prune", "migrate", "replay"),
        *("import", "audit", "log"),
    ),
    "read a service": (
        *("state", "board", "feed", "flips", "confluence", "usage", "connect", "stdio"),
    ),
    "verify a service": ("verify", "witness"),
    "keys and people": ("keys", "sign-in", "access-requests", "person"),
    "your shell": ("completion",),
}
COMMANDS: Final = (
    Command(
        "serve",
        "compute every hour, and serve over MCP and REST",
        choose_server,
        (
            option(
                "--workers",
                type=parse_count(1, None, "1 or more"),
                default=1,
                metavar="N",
                help_text="number of serving processes (default 1), besides the one that computes",
            ),
            option(
                "--single-process",
                action="store_true",
                help_text="compute in the serving process, for a machine with little memory",
            ),
            option(
                "--no-compute",
                action="store_false",
                dest="computes",
                help_text="serve only; another process computes on this database",
            ),
            LIVE,
            BELIEVE_CLOCK,
        ),
    ),
    Command(
        "compute",
        "compute every hour, without serving",
        "service.commands.compute_command:compute",
        (LIVE, BELIEVE_CLOCK),
    ),
    Command(
        "replay",
        "compute a folder of recorded bars into the store",
        "service.commands.history:replay_bars",
        (
            option(
                "--bars",
                type=Path,
                required=True,
                dest="folder",
                metavar="DIR",
                help_text="folder of recorded bars",
            ),
            option(
                "--until",
                type=parse_time,
                metavar="TIME",
                help_text="last run to compute, an ISO 8601 time, UTC unless it has a zone",
            ),
        ),
    ),
    Command(
        "import",
        "turn files of bars, as vendors write them, into a folder of recorded bars",
        "service.commands.history:import_bars",
        (
            option("paths", type=Path, nargs="+", metavar="PATH", help_text="file or folder"),
            option(
                "--to",
                type=Path,
                required=True,
                metavar="DIR",
                help_text="folder to write; bars that it has stay",
            ),
            option("--ticker", metavar="TICKER", help_text="asset, if names do not say"),
            option("--columns", metavar="LIST", help_text="columns, such as time=Date,close=Close"),
            option("--zone", metavar="ZONE", help_text="zone of times without one"),
            option("--stamp", choices=("open", "close"), help_text="what the times of bars mean"),
            option("--decimal", choices=(".", ","), help_text="decimal mark of the numbers"),
            option("--dates", choices=("dmy", "mdy"), help_text="order of dates like 1/2/2024"),
            option(
                "--repeated",
                choices=("first", "last"),
                help_text="which of several rows of a time to keep if they differ",
            ),
            option(
                "--split",
                action="append",
                default=[],
                metavar="DATE:RATIO",
                help_text="divide all prices before a day by a number, such as 2024-06-10:10",
            ),
            option(
                "--accept-jump",
                action="append",
                default=[],
                metavar="DATE",
                help_text="accept that prices jumped on a day as at a split",
            ),
            option("--dry-run", action="store_true", help_text="write nothing"),
        ),
    ),
    Command(
        "audit",
        "recompute everything published from the stored bars, and report differences",
        "service.commands.history:audit_store",
        (LIVE,),
    ),
    Command(
        "prune",
        "delete rows older than their retention",
        "service.commands.backup:prune_stores",
        (LIVE, BELIEVE_CLOCK),
    ),
    Command(
        "backup",
        "copy the whole store, also while it is in use",
        "service.commands.backup:backup",
        (
            option(
                "folder",
                type=Path,
                nargs="?",
                metavar="DIR",
                help_text="new or empty folder; the default is next to the store, named by the "
                "time",
            ),
            LIVE,
        ),
    ),
    Command(
        "restore",
        "restore a backup to a path where no store exists",
        "service.commands.backup:restore",
        (option("folder", type=Path, metavar="DIR", help_text="folder of the backup"),),
    ),
    Command(
        "migrate",
        "move everything to another database",
        "service.commands.history:migrate_database",
        (
            option(
                "--from", required=True, dest="source", metavar="URL", help_text="database to move"
            ),
            option(
                "--to",
                dest="target",
                metavar="URL",
                help_text="database to move to; the default is SIGNALS_DATABASE_URL",
            ),
        ),
    ),
    Command(
        "doctor",
        "check settings, stores, source, billing and mail",
        "service.commands.doctor:run_doctor",
        (
            option(
                "--universe",
                action="store_true",
                help_text="check each listing of the universe file at the live venues instead",
            ),
            LIVE,
        ),
    ),
    Command(
        "log restart",
        "begin a new log with another key, if the store no longer has the rows that were signed",
        "service.commands.history:restart_log",
    ),
    Command(
        "witness",
        "cosign the checkpoints of another operator's log, as c2sp.org/tlog-witness says",
        "service.commands.witness:run_witness",
        (
            option(
                "key_file",
                type=Path,
                metavar="FILE",
                help_text="file of the key and of the tree that was cosigned last, created at the "
                "first start",
            ),
            option(
                "--name", required=True, help_text="name of the witness, such as witness.example/w1"
            ),
            option(
                "--log",
                required=True,
                metavar="VKEY",
                help_text="key of the log, which its operator and /api/v1/log/key state",
            ),
            option(
                "--port",
                type=parse_count(0, 65535, "a port from 0 to 65535"),
                default=8700,
                help_text="port on 127.0.0.1 for a proxy (default 8700)",
            ),
        ),
    ),
    Command(
        "connect",
        "print how to register the MCP server with a client",
        "service.commands.cli:print_registration",
        (
            option(
                "client",
                nargs="?",
                type=parse_client,
                metavar="CLIENT",
                help_text="name of the client; omit it to list all",
            ),
            URL,
        ),
    ),
    Command(
        "stdio",
        f"bridge MCP over stdio to a service, with the key in {API_KEY_VARIABLE}",
        "service.commands.stdio:bridge_stdio",
        (URL,),
    ),
    Command(
        "verify",
        "check that the log of a service contains every row of its feed, and that nothing was "
        f"rewritten since the last time, with the key in {API_KEY_VARIABLE}; the first time takes "
        "about 280 calls of its quota for 30 days, later ones few",
        "service.commands.verify:verify_service",
        (
            URL,
            option(
                "--state",
                type=Path,
                metavar="DIR",
                help_text="folder of your record; the default is signals/verify/HOST_PORT in "
                "XDG_STATE_HOME",
            ),
            option(
                "--since",
                metavar="TIME",
                help_text="read the feed after this ISO 8601 time, UTC unless it has a zone, or "
                "7d; the default is what your record and clock demand, at first 30 days",
            ),
            option(
                "--rows",
                type=Path,
                metavar="FILE",
                help_text="check the rows of this file, answers of /signals or one row per line; "
                "the feed is then read only with --since",
            ),
            option(
                "--policy",
                type=Path,
                metavar="FILE",
                help_text="witnesses that must have cosigned",
            ),
            option("--vkey", metavar="KEY", help_text="key of the log, instead of the saved one"),
            option(
                "--proof",
                type=Path,
                metavar="FILE",
                help_text="check this proof of a row in --rows, without a network",
            ),
            option(
                "--prove",
                metavar="ID",
                help_text="print the proof of a row of your record, without a network",
            ),
            option(
                "--own",
                type=Path,
                metavar="FILE",
                help_text="compare the feed with these rows, which you computed from bars of your "
                "own",
            ),
            option(
                "--compare",
                type=Path,
                metavar="FILE",
                help_text="check that this checkpoint of another customer is of the same log",
            ),
            option(
                "--answers",
                action="store_true",
                help_text="also check that all answers of the service follow from its feed and its "
                "catalog, and match its OpenAPI document",
            ),
        ),
        # 1 says that something was rewritten.
        failure_status=2,
    ),
    read_command(
        "state",
        "print the readings of a service, one row per asset with score, price and age",
        FILTERS,
        (
            option(
                "--changes",
                action="store_true",
                help_text="one row per reading: since when it holds, the price then, and the move",
            ),
            option(
                "tickers",
                nargs="*",
                metavar="TICKER",
                help_text="tickers; omit them for all assets",
            ),
        ),
    ),
    read_command(
        "board",
        "print all readings of a service as letters, one row per asset",
        FILTERS,
    ),
    read_command(
        "feed",
        "print the changes of readings and the alerts of a service, or follow them",
        (
            query_option(
                "tier", "feed to read (default universe)", "TIER", (*get_args(Tier), "all")
            ),
            *(TICKER, ASSET_CLASS, INDICATOR, TIMEFRAME),
            query_option("direction", "only changes to this direction", "DIR", get_args(Direction)),
            query_option(
                "since",
                "only rows after this ISO 8601 time, UTC unless it has a zone, or 7d",
                "TIME",
            ),
            query_option("limit", "number of rows, 1 to 200 (default 50)", "N"),
            query_option(
                "order", "order of the rows (default newest)", "ORDER", ("newest", "oldest")
            ),
            query_option("offset", "rows to skip (default 0)", "N"),
        ),
        (
            option(
                "--all",
                action="store_true",
                group="reader",
                help_text="print all rows that the service keeps, or those after --since, oldest "
                "first, as with --csv > feed.csv; takes one call for 200 rows",
            ),
            option(
                "--follow",
                action="store_true",
                group="reader",
                help_text="wait for new rows and print each, until stopped; starts with the rows "
                "after --since, by default with those that come from now on",
            ),
            option(
                "--exec",
                metavar="CMD",
                group="receiver",
                help_text="with --follow: run this shell command for each row, with its JSON on "
                "standard input",
            ),
            option(
                "--post",
                metavar="URL",
                group="receiver",
                help_text="with --follow: post each row to this address, signed as Standard "
                "Webhooks with the secret in SIGNALS_WEBHOOK_SECRET",
            ),
            option(
                "--notify",
                nargs="?",
                const="",
                metavar="URL",
                group="receiver",
                help_text="with --follow: send each row as a message to this address of Apprise "
                "(Discord, Slack, Telegram, ntfy, mail and others); without URL, to the one in "
                f"{NOTIFY_VARIABLE}",
            ),
            option(
                "--per-run",
                action="store_true",
                help_text="with --notify or --exec: hand on the rows of a run at once",
            ),
            option(
                "--body",
                type=Path,
                metavar="FILE",
                help_text="with --post: Jinja template of the body, from type, timestamp and data",
            ),
            option(
                "--when",
                type=parse_condition,
                metavar="CONDITION",
                help_text="with --follow: only rows with 'confluence>=N': after their run, N "
                "indicators agree with them on their asset and timeframe",
            ),
            option(
                "--cursor",
                type=Path,
                metavar="FILE",
                help_text="with --follow: file with the time of the last row that was handed on, "
                "from which the next start continues; it takes precedence over --since",
            ),
        ),
        run=choose_feed,
    ),
    read_command(
        "flips",
        "print the assets of a service whose readings have just changed",
        (
            *(TIMEFRAME, TICKER, ASSET_CLASS),
            query_option(
                "direction",
                "only changes to this side (default all)",
                "DIR",
                ("all", *get_args(Side)),
            ),
            query_option(
                "hours", "length of the window (default 3, 12 or 48 for 1h, 4h or 1d)", "N"
            ),
        ),
    ),
    read_command(
        "confluence",
        "print the assets of a service on which several indicators agree",
        (
            TIMEFRAME,
            query_option(
                "direction", "direction to agree on (default bullish)", "DIR", get_args(Side)
            ),
            *(ASSET_CLASS, AS_OF),
            query_option(
                "min_agree", "least number of agreeing indicators, 1 to 6 (default 3)", "N"
            ),
        ),
    ),
    read_command("usage", "print how much of the key's daily quota is left", ()),
    Command(
        "sign-in",
        "print a link that signs the owner in to the pages of the service, once",
        "service.commands.access:print_sign_in_link",
    ),
    Command(
        "keys create",
        "create a key and print it; it is shown only once",
        "service.commands.access:create_key",
        (
            option("--label", required=True, help_text="name of the key"),
            option(
                "--expires",
                type=parse_expiry,
                metavar="TIME",
                help_text="number of days, date (00:00 UTC) or ISO 8601 time; by default it never "
                "expires",
            ),
        ),
    ),
    Command(
        "keys list",
        "list keys, without the keys themselves",
        "service.commands.access:list_keys",
        (AS_JSON,),
    ),
    Command(
        "keys revoke",
        "revoke a key permanently",
        "service.commands.access:revoke_key",
        (KEY_ID,),
    ),
    Command(
        "keys rotate",
        "replace a key, which then expires; print the new one",
        "service.commands.access:rotate_key",
        (
            KEY_ID,
            option(
                "--overlap",
                type=parse_count(
                    0, MAX_OVERLAP_HOURS, f"a number of hours from 0 to {MAX_OVERLAP_HOURS}"
                ),
                default=24,
                metavar="HOURS",
                help_text="hours for which the replaced key still works, 0 to 720 (default 24)",
            ),
        ),
    ),
    Command(
        "keys requests",
        "list the latest calls of a key, newest first",
        "service.commands.access:list_requests",
        (KEY_ID, AS_JSON),
    ),
    Command(
        "keys adopt",
        "if the store of keys was lost: accept the one that is there now, or a new empty one",
        "service.commands.access:adopt_keys",
    ),
    Command(
        "access-requests",
        "list access requests, one JSON object per line",
        "service.commands.access:list_access_requests",
    ),
    Command(
        "person",
        "print or erase the data of a person",
        "service.commands.access:handle_person",
        (
            option("email", metavar="ADDRESS", help_text="e-mail address of the person"),
            option(
                "--export",
                group="person",
                action="store_true",
                help_text="print all of it as JSON, without keys, tokens and their hashes",
            ),
            option(
                "--erase",
                group="person",
                action="store_true",
                help_text="erase it and revoke the keys; of purchases, plan, times and the payment "
                "processor's ids stay",
            ),
        ),
    ),
    Command(
        "completion",
        "print the script that completes commands and options in a shell",
        "service.commands.cli:print_completion",
        (
            option(
                "shell",
                metavar="SHELL",
                choices=("bash", "zsh", "fish"),
                help_text="bash, zsh or fish",
            ),
        ),
    ),
)
# Shown by `--help`.
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "signals": (
        "signals serve",
        "signals keys create --label me",
        "signals state BTC ETH",
        "signals feed --follow",
    ),
    "signals serve": ("signals serve", "signals serve --live", "signals serve --workers 2"),
    "signals compute": ("signals compute", "signals compute --believe-clock"),
    "signals prune": ("signals prune",),
    "signals import": ("signals import Downloads --to bars --dry-run",),
    "signals replay": ("signals replay --bars recorded --until 2026-09-30T00:00:00Z",),
    "signals audit": ("signals audit",),
    "signals backup": ("signals backup /var/backups/signals",),
    "signals restore": ("signals restore /var/backups/signals",),
    "signals migrate": (
        "signals migrate --from sqlite:///signals.db --to postgresql://signals@localhost/signals",
    ),
    "signals doctor": ("signals doctor", "signals doctor --universe"),
    "signals witness": ("signals witness witness.json --name witness.example/w1 --log $VKEY",),
    "signals connect": (
        "signals connect",
        "signals connect cursor --url https://signals.example",
    ),
    "signals stdio": ("signals stdio --url https://signals.example",),
    "signals verify": (
        "signals verify --url https://signals.example",
        "signals verify --answers --since 2026-09-01T00:00:00Z",
        "signals verify --rows answers.jsonl --policy witnesses.txt",
    ),
    "signals state": (
        "signals state BTC ETH --timeframe 1d",
        "signals state --asset-class metal --direction bullish",
        "signals state BTC --changes",
        "signals state NVDA --as-of $(date -u +%F) --json",
    ),
    "signals board": (
        "signals board",
        "signals board --asset-class crypto --timeframe 1d --csv > board.csv",
    ),
    "signals feed": (
        "signals feed --ticker BTC --limit 10",
        "signals feed --tier alerts --since 2026-09-30T00:00:00Z --csv",
        "signals feed --all --csv > feed.csv",
        "signals feed --follow --timeframe 1d",
        "signals feed --follow --exec 'jq -r .ticker >> changed' --cursor feed.cursor",
        "signals feed --follow --post https://example.com/hook --cursor feed.cursor",
        "signals feed --follow --ticker NVDA --when 'confluence>=6' --notify ntfys://ntfy.sh/TOPIC",
    ),
    "signals flips": ("signals flips", "signals flips --timeframe 4h --hours 24"),
    "signals confluence": (
        "signals confluence",
        "signals confluence --timeframe 1d --direction bearish --min-agree 5",
    ),
    "signals usage": ("signals usage", "signals usage --url https://signals.example"),
    "signals keys create": (
        "signals keys create --label me",
        "signals keys create --label trial --expires 30",
    ),
    "signals keys list": ("signals keys list", "signals keys list --json"),
    "signals keys revoke": ("signals keys revoke 3",),
    "signals keys rotate": ("signals keys rotate 3 --overlap 48",),
    "signals keys requests": ("signals keys requests 3",),
    "signals person": (
        "signals person buyer@example.com --export",
        "signals person buyer@example.com --erase",
    ),
    "signals completion": (
        'eval "$(signals completion bash)"',
        "signals completion zsh > ~/.zfunc/_signals",
        "signals completion fish > ~/.config/fish/completions/signals.fish",
    ),
}
