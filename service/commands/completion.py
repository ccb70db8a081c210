"""`signals completion`: prints the script that completes the command in a shell."""

import argparse
from pathlib import Path

import shtab

from service.commands.command_tree import walk_commands


def print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print the script for bash, zsh or fish."""
    for command in walk_commands(parser):
        for action in command._actions:
            if action.type is Path:
                is_folder = action.metavar == "DIR"
                action.complete = shtab.DIRECTORY if is_folder else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell))
    return 0
