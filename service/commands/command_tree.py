"""The tree of commands: walks it, suggests the nearest name for a misspelt one, adds examples."""

import argparse
import difflib
from collections.abc import Iterator, Mapping, Sequence

# Below this similarity, from 0 to 1, argparse's list of all commands helps more.
MIN_SIMILARITY = 0.6


def walk_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all commands; a group such as `keys` yields only its commands."""
    subcommands = _get_subcommands(parser)
    if not subcommands:
        yield parser
    for command in subcommands.values():
        yield from walk_commands(command)


def suggest_command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> str | None:
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


def add_examples(parser: argparse.ArgumentParser, examples: Mapping[str, Sequence[str]]) -> None:
    """End the help of each command with its examples; the keys are such as `signals keys list`."""
    for command in (parser, *walk_commands(parser)):
        lines = "".join(f"  {line}\n" for line in examples.get(command.prog, ()))
        if lines:
            command.epilog = f"examples:\n{lines}"
            command.formatter_class = argparse.RawDescriptionHelpFormatter


def _get_subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    # argparse has no public way to list subcommands.
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return groups[0].choices if groups else {}
