"""Adds the commands that read a service to the parser of the `signals` command."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias, get_args

from schemas.vocabulary import (
    INDICATOR_IDS,
    TIMEFRAMES,
    AssetClass,
    Direction,
    Reading,
    Side,
    Tier,
)

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
# What a command runs, as in the table of commands.
Run = str | Callable[[argparse.Namespace], str]


class Option(NamedTuple):
    """An option that is passed on as an argument of the call, unchecked unless it has choices."""

    parameter: str
    help_text: str
    metavar: str
    choices: tuple[str, ...] | None = None

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add it, for example `as_of` as `--as-of`."""
        parser.add_argument(
            "--" + self.parameter.replace("_", "-"),
            metavar=self.metavar,
            choices=self.choices,
            help=f"{self.help_text}: {', '.join(self.choices)}" if self.choices else self.help_text,
        )


TIMEFRAME = Option("timeframe", "only this timeframe", "TF", TIMEFRAMES)
INDICATOR = Option("indicator", "only this indicator", "ID", INDICATOR_IDS)
ASSET_CLASS = Option("asset_class", "only assets of this class", "CLASS", get_args(AssetClass))
TICKER = Option("ticker", "only these tickers, separated by commas", "TICKERS")
READING = Option("direction", "only readings in this direction", "DIR", get_args(Reading))
AS_OF = Option("as_of", "readings as served at this past time, ISO 8601", "TIME")
TIER = Option("tier", "feed to read (default universe)", "TIER", (*get_args(Tier), "all"))
ORDER = Option("order", "order of the rows (default newest)", "ORDER", ("newest", "oldest"))
CHANGE = Option("direction", "only changes to this direction", "DIR", get_args(Direction))
FLIP = Option(
    "direction", "only changes to this side (default all)", "DIR", ("all", *get_args(Side))
)
SIDE = Option("direction", "direction to agree on (default bullish)", "DIR", get_args(Side))

FEED_OPTIONS = (
    *(TIER, TICKER, ASSET_CLASS, INDICATOR, TIMEFRAME, CHANGE),
    Option("since", "only rows after this ISO 8601 time, UTC unless it has a zone", "TIME"),
    *(Option("limit", "number of rows, 1 to 200 (default 50)", "N"), ORDER),
    Option("offset", "rows to skip (default 0)", "N"),
)
FLIPS_OPTIONS = (
    *(TIMEFRAME, TICKER, ASSET_CLASS, FLIP),
    Option("hours", "length of the window (default 3, 12 or 48 for 1h, 4h or 1d)", "N"),
)
CONFLUENCE_OPTIONS = (
    *(TIMEFRAME, SIDE, ASSET_CLASS, AS_OF),
    Option("min_agree", "least number of agreeing indicators, 1 to 6 (default 3)", "N"),
)


def add_commands(commands: Commands, read: Run, follow_or_read: Run) -> None:
    """Add the commands: `feed` runs `follow_or_read`, the others run `read`."""
    filters = (TIMEFRAME, INDICATOR, READING, ASSET_CLASS, AS_OF)
    command = _add_view(
        commands, "state", read, "print the readings of a service by asset and indicator", filters
    )
    command.add_argument(
        "tickers", nargs="*", metavar="TICKER", help="tickers; omit them for all assets"
    )
    _add_view(
        commands,
        "board",
        read,
        "print all readings of a service as letters, one row per asset",
        filters,
        {"view": "board"},
    )
    command = _add_view(
        commands,
        "feed",
        follow_or_read,
        "print the changes of readings and the alerts of a service, or follow them",
        FEED_OPTIONS,
    )
    _add_follow_options(command)
    _add_view(
        commands,
        "flips",
        read,
        "print the assets of a service whose readings have just changed",
        FLIPS_OPTIONS,
    )
    _add_view(
        commands,
        "confluence",
        read,
        "print the assets of a service on which several indicators agree",
        CONFLUENCE_OPTIONS,
    )
    _add_view(commands, "usage", read, "print how much of the key's daily quota is left", ())


def _add_view(
    commands: Commands,
    name: str,
    run: Run,
    help_text: str,
    options: Iterable[Option],
    fixed: Mapping[str, str] | None = None,
) -> argparse.ArgumentParser:
    """Add a command; `fixed` has the arguments that it always sends."""
    parser = commands.add_parser(name, help=help_text, description=help_text)
    for option in options:
        option.add_to(parser)
    parser.add_argument(
        "--url",
        metavar="URL",
        help="address of the service; the default is this machine's",
    )
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print the JSON of the service")
    formats.add_argument("--csv", action="store_true", help="print CSV, one record per row")
    parser.set_defaults(
        run=run,
        view=name,
        parameters=[option.parameter for option in options],
        fixed=dict(fixed or {}),
    )
    return parser


def _add_follow_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--follow",
        action="store_true",
        help="wait for new rows and print each, until stopped; starts with the rows after --since, "
        "by default with those that come from now on",
    )
    receivers = parser.add_mutually_exclusive_group()
    receivers.add_argument(
        "--exec",
        metavar="CMD",
        help="with --follow: run this shell command for each row, with its JSON on standard input",
    )
    receivers.add_argument(
        "--post",
        metavar="URL",
        help="with --follow: post each row to this address, signed as Standard Webhooks with the "
        "secret in SIGNALS_WEBHOOK_SECRET",
    )
    parser.add_argument(
        "--cursor",
        type=Path,
        metavar="FILE",
        help="with --follow: file with the time of the last row that was handed on, from which "
        "the next start continues; it takes precedence over --since",
    )
