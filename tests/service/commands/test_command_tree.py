"""The tree of commands: misspelt names, examples, the version, and completion in a shell."""

import argparse
import inspect
import re
import shlex
import subprocess
from importlib import import_module

import pytest

from schemas.version import VERSION
from service.commands.cli import _build_parser, _list_values, suggest_command, walk_commands
from service.commands.command_table import EXAMPLES, GROUPS
from service.config.settings import Settings
from tests.service.commands.test_cli import only_line
from tests.support.signals_command import run_signals

pytestmark = pytest.mark.clause("operation")

COMMANDS = {command.prog: command for command in walk_commands(_build_parser())}


# Calls that choose another function than the example of their command does.
OTHER_CALLS = ["serve --workers 2", "doctor --universe", "feed --follow"]


@pytest.mark.parametrize("call", [*(one.partition(" ")[2] for one in COMMANDS), *OTHER_CALLS])
def test_a_command_has_a_value_for_each_parameter_of_its_function(call: str):
    words, required = call.split(), {"--from": "sqlite:///x", "shell": "bash"}
    for action in COMMANDS[" ".join(["signals", *words[: 1 + (words[0] in GROUPS)]])]._actions:
        if action.required:
            value = required.get(
                (action.option_strings or [""])[0], "bash" if action.choices else "1"
            )
            words += [*action.option_strings, value]
    args = _build_parser().parse_args(words)
    module, _, name = (args.run if isinstance(args.run, str) else args.run(args)).partition(":")
    parameters = inspect.signature(getattr(import_module(module), name)).parameters.values()
    needed = {one.name for one in parameters if one.default is inspect.Parameter.empty}
    assert needed <= _list_values(args, Settings.read({})).keys()


@pytest.mark.clause("22.6")
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("stat", "signals state"),
        ("confluance BTC", "signals confluence"),
        ("key list", "signals keys"),
        ("keys lst", "signals keys list"),
        ("FLIPS", None),
        ("zzz", None),
        ("state BTX", None),
        ("keys", None),
        ("--verison", None),
        ("", None),
    ],
)
def test_the_nearest_command_is_suggested_for_a_misspelt_one(given, meant):
    suggestion = suggest_command(_build_parser(), given.split())
    assert suggestion == (
        meant
        and f"{given.split()[-1 if 'keys' in given else 0]!r} is not a command; did you mean "
        f"`{meant}`?"
    )


@pytest.mark.clause("22.6")
def test_a_misspelt_command_ends_with_status_2(tmp_path):
    done = run_signals(tmp_path, "feeed")
    assert done.returncode == 2
    assert done.stderr.endswith("'feeed' is not a command; did you mean `signals feed`?\n")


def test_the_version_is_that_of_the_release(tmp_path):
    assert run_signals(tmp_path, "--version").stdout == f"signals {VERSION}\n"


def has_arguments(command: argparse.ArgumentParser) -> bool:
    return any(not isinstance(one, argparse._HelpAction) for one in command._actions)


def test_every_command_with_arguments_has_examples():
    named = {name for name, one in COMMANDS.items() if has_arguments(one)}
    assert named - EXAMPLES.keys() == set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_a_valid_call_and_in_the_help(name):
    help_text = COMMANDS.get(name, _build_parser()).format_help()
    for example in EXAMPLES[name]:
        assert f"  {example}\n" in help_text
        called = re.sub(r'^eval "\$\((.*)\)"$', r"\1", example.partition(" > ")[0])
        program, *arguments = shlex.split(called)
        assert program == "signals"
        args = _build_parser().parse_args(arguments)
        assert name == "signals" or args.run
        assert called.startswith(name)


def complete_in_bash(tmp_path, *words: str) -> list[str]:
    """Return what bash offers for the last word of a command line."""
    script = run_signals(tmp_path, "completion", "bash").stdout
    done = subprocess.run(
        [
            *("bash", "-c"),
            f"{script}\nCOMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}\n"
            '_shtab_signals; printf "%s\\n" "${COMPREPLY[@]}"',
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_bash_completes_commands_options_and_values(tmp_path):
    assert "state" in complete_in_bash(tmp_path, "signals", "sta")
    assert complete_in_bash(tmp_path, "signals", "feed", "--curs") == ["--cursor"]
    assert complete_in_bash(tmp_path, "signals", "state", "--timeframe", "") == ["1h", "4h", "1d"]


@pytest.mark.parametrize(("shell", "start"), [("zsh", "#compdef signals"), ("fish", "")])
def test_other_shells_get_a_script_of_their_own(tmp_path, shell, start):
    script = run_signals(tmp_path, "completion", shell).stdout
    assert script.startswith(start)
    for name in ("confluence", "min-agree"):
        assert name in script


def test_an_unknown_shell_is_refused(tmp_path):
    done = run_signals(tmp_path, "completion", "tcsh")
    assert done.returncode == 2
    assert "choose from" in only_line(done.stderr.splitlines()[-1])
