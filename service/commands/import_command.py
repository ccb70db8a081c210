"""`signals import`: turns files of bars as people have them into a folder of recorded bars."""

from argparse import Namespace
from datetime import date
from zoneinfo import ZoneInfo

from compute.universe import load_universe
from schemas.version import describe_install
from service.commands.console import FOUND, echo
from service.config.settings import Settings, SettingsError

COLUMNS = ("time", "clock", "open", "high", "low", "close", "volume")


def import_bars(settings: Settings, args: Namespace) -> int:
    """Read files, judge their bars and write them; return 1 if anything is doubtful."""
    try:
        # Only here, because the library that reads the files is an extra.
        from compute.sources.bar_formats import FormatOptions
        from compute.sources.bar_import import BarImport, ImportOptions
    except ImportError as error:
        raise SettingsError(
            f"signals import needs the extra libraries ({error.name} is missing): "
            f"{describe_install('import')}"
        ) from None
    formats = FormatOptions(
        dict(
            _parse_pair(text, "=", "time=Date") for text in (args.columns or "").split(",") if text
        ),
        _parse_zone(args.zone),
        args.decimal,
        args.dates,
    )
    if unknown := [name for name in formats.columns if name not in COLUMNS]:
        raise SettingsError(f"--columns has no {unknown[0]!r}; it names {', '.join(COLUMNS)}")
    splits = [_parse_pair(text, ":", "2024-06-10:10") for text in args.split]
    options = ImportOptions(
        args.ticker,
        formats,
        args.stamp,
        args.repeated,
        {_parse_day(day): _parse_ratio(ratio) for day, ratio in splits},
        frozenset(map(_parse_day, args.accept_jump)),
    )
    bars = BarImport(args.to, load_universe(settings.universe), options)
    for path in args.paths:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            bars.read(file)
    bars.judge()
    for line in bars.lines:
        print(line)
    for doubt in bars.doubts:
        print(f"doubtful: {doubt}")
    if bars.doubts:
        echo(f"Nothing is written: {len(bars.doubts)} doubtful.")
        return FOUND
    if args.dry_run:
        echo("Nothing is written, because of --dry-run.")
        return 0
    bars.write()
    echo(f"Written. Start with SIGNALS_SOURCE=files:{args.to}, or replay with --bars {args.to}.")
    return 0


def _parse_pair(text: str, mark: str, example: str) -> tuple[str, str]:
    left, found, right = text.partition(mark)
    if not (left and found and right):
        raise SettingsError(f"{text!r} is not of the form {example}")
    return left.strip(), right.strip()


def _parse_zone(name: str | None) -> str | None:
    try:
        return None if name is None else ZoneInfo(name).key
    except (ValueError, OSError, KeyError):
        raise SettingsError(f"--zone {name!r} is no time zone, such as Europe/Berlin") from None


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a day, such as 2024-06-10") from None


def _parse_ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 0.0001 <= ratio <= 10_000:
        raise SettingsError(f"{text!r} is not a number of new shares for an old one, such as 10")
    return ratio
