import argparse
import fcntl
import inspect
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

from schemas.version import VERSION
from service.commands.cli import (
    _build_parser,
    _list_values,
    main,
    parse_base_address,
    suggest_command,
    walk_commands,
)
from service.commands.command_table import EXAMPLES, GROUPS
from service.commands.compute_command import PLAYED_OUT_NOTE
from service.config.settings import Settings
from tests.support.bar_sets import copy_newest_rows, generate_folder
from tests.support.signals_command import (
    COMMAND,
    build_environment,
    create_store,
    find_free_port,
    run_signals,
    start_signals,
)

pytestmark = pytest.mark.clause("operation")

# The newest expired row of an action stays, because it continues the engine's cooldown.
EXPIRED_ALERTS = """
SELECT count(*) FROM alerts, clock WHERE created_at < market_time - 90 * 86400000 AND
  created_at NOT IN (
    SELECT max(created_at) FROM alerts, clock WHERE created_at < market_time - 90 * 86400000
    GROUP BY asset_id, indicator, timeframe, action, epoch
  )
"""
HEADER = "ts,open,high,low,close,volume\n"


def write_bars(folder: Path, ticker: str = "BTC", count: int = 3) -> Path:
    folder.mkdir(exist_ok=True)
    rows = [f"{1_735_689_600 + hour * 3600},10,11,9,10.5,1\n" for hour in range(count)]
    (folder / f"{ticker}_1h.csv").write_text(HEADER + "".join(rows))
    return folder


def only_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


def refused(folder: Path, *command: str, status: int = 1, **settings: str) -> str:
    """Run a command that fails; return its only line of output."""
    done = run_signals(folder, *command, **settings)
    assert (done.returncode, done.stdout) == (status, "")
    return only_line(done.stderr)


def test_a_new_key_is_the_only_output_and_stored_as_a_hash(tmp_path):
    create_store(tmp_path)
    made = run_signals(tmp_path, "keys", "create", "--label", "me")
    assert made.returncode == 0
    assert re.fullmatch(r"ek_[A-Za-z0-9_-]{43}\n", made.stdout)
    for file in tmp_path.glob("signals.db*"):
        assert made.stdout.strip().encode() not in file.read_bytes()


def test_keys_are_listed_without_the_key_and_revoked_for_good(tmp_path):
    create_store(tmp_path)
    api_key = run_signals(tmp_path, "keys", "create", "--label", "one").stdout.strip()
    listed = run_signals(tmp_path, "keys", "list").stdout
    header, row = (re.split(r" {2,}", line.strip()) for line in listed.splitlines())
    assert header == ["ID", "LABEL", "STATUS", "OWNER", "MODE", "LAST USED (UTC)", "CREATED (UTC)"]
    assert row[:-1] == ["1", "one", "active", "operator", "-", "-"]
    assert api_key not in listed
    done = run_signals(tmp_path, "keys", "revoke", row[0])
    said = r"Revoked key 1 \(one\), created 20\S+, never used: calls with it get 403\.\n"
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(said, done.stderr)
    assert "revoked 20" in run_signals(tmp_path, "keys", "list").stdout
    again = run_signals(tmp_path, "keys", "revoke", row[0])
    assert re.fullmatch(r"Key 1 \(one\) was revoked at 20\S+ already\.\n", again.stderr)


def test_the_command_alone_prints_all_commands_under_headings(tmp_path):
    done = run_signals(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    names = re.findall(r"^  ([a-z][a-z-]*) +\S", done.stdout.partition("examples:")[0], re.M)
    assert sorted(names) == sorted({name.split()[1] for name in COMMANDS})
    headings = re.findall(r"^([a-z].*):$", done.stdout, re.MULTILINE)
    assert headings[headings.index("commands") + 1 :][:4] == [
        *("run a service", "read a service", "verify a service", "keys and people"),
    ]


LONG_NAME = "x" * 300 + ".db"


def test_an_id_beyond_those_of_a_database_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["keys", "revoke", str(2**63)])
    assert "must be an id from `signals keys list`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "command", "settings", "reason"),
    [
        (1, "keys revoke 7", {}, "there is no key 7: see `signals keys list` for the ids"),
        (1, "keys list", {"daily_limits": "1"}, "SIGNALS_DAILY_LIMITS is not a setting"),
        (1, "keys list", {"database_url": f"sqlite:///{LONG_NAME}"}, f".*{LONG_NAME}"),
        (1, "keys list", {"database_url": "sqlite:///bars/BTC_1h.csv/a.db"}, ".*BTC_1h.csv/a.db"),
        (1, "replay --bars bars", {"database_url": "sqlite:///missing/signals.db"}, ".*missing"),
        (1, "audit", {"database_url": "sqlite:///bars/BTC_1h.csv"}, ".*BTC_1h.csv"),
        (1, "serve", {"host": "nowhere.invalid"}, ".*SIGNALS_HOST"),
        (1, "serve", {"host": "a..b"}, ".*it is no host name; set SIGNALS_PORT or SIGNALS_HOST"),
        (1, "serve --workers 2 --single-process", {}, "--single-process and --workers N exclude"),
        (
            1,
            "stdio",
            {"api_key": "ek_é"},
            "SIGNALS_API_KEY contains invalid characters: set it to the key as it was shown$",
        ),
        (2, "keys create --label ''", {}, "a label must have"),
        (2, "keys create --label own --expires 2020-01-01", {}, ".*must expire later than now"),
        (2, "person a@example.com", {}, "add --export"),
        (2, "person nobody --erase", {}, "the address "),
        (2, "state BTC --url foo", {}, "--url must be an http"),
        (2, "connect cursor --url 'not a url'", {}, "--url must be an http"),
    ],
)
def test_a_mistake_of_the_operator_ends_a_command_in_one_line(
    tmp_path, status, command, settings, reason
):
    create_store(tmp_path)
    write_bars(tmp_path / "bars")
    line = refused(tmp_path, *shlex.split(command), status=status, **settings)
    assert re.match(f"signals: {reason}", line)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_occupied_port_ends_serve_in_one_line_before_anything_is_created(tmp_path, workers):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}" in refused(tmp_path, "serve", "--workers", workers, port=port)
    assert not (tmp_path / "signals.db").exists()


def test_replay_is_resumable_and_another_folder_is_refused(tmp_path):
    bars = write_bars(tmp_path / "bars")
    # UTC, unless it has a zone.
    first = run_signals(tmp_path, "replay", "--bars", str(bars), "--until", "2025-01-01T02:30:00")
    assert "2025-01-01T02:03:00.000Z" in first.stderr
    assert "2025-01-01T03:03:00.000Z" in run_signals(tmp_path, "replay", "--bars", str(bars)).stderr
    assert run_signals(tmp_path, "replay", "--bars", str(bars)).returncode == 0
    other = write_bars(tmp_path / "other")
    assert "holds the bars of" in refused(tmp_path, "replay", "--bars", str(other))


KEY_COMMANDS = [
    ["keys", "create", "--label", "me"],
    *(["keys", "list"], ["keys", "revoke", "1"], ["access-requests"]),
]
MIGRATE = ["migrate", "--from", "sqlite:///signals.db", "--to", "sqlite:///other.db"]


NO_STORE = ": .*SIGNALS_DATABASE_URL.*`signals serve`"
NAMES = ("signals.db", "signals.db-access")


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        (NAMES, f"there is no store at FOLDER/signals.db{NO_STORE}"),
        (
            NAMES[:1],
            rf"there is no store at FOLDER/signals.db \(only its keys, FOLDER/.*\){NO_STORE}",
        ),
        (NAMES[1:], ".*there is no FOLDER/signals.db-access; restore a backup"),
        # Files without content are no store either.
        ((), f"there is no store at FOLDER/signals.db{NO_STORE}"),
    ],
)
@pytest.mark.parametrize("command", [*KEY_COMMANDS, MIGRATE, ["audit"], ["prune"], ["backup"]])
def test_a_command_on_a_lost_store_fails_in_one_line_and_creates_none(
    tmp_path, lost, text, command
):
    if lost:
        create_store(tmp_path)
    for name in lost or NAMES:
        (tmp_path / name).unlink() if lost else (tmp_path / name).touch()
    before = files(tmp_path)
    # Market data without keys can be audited.
    if (lost, command) != (NAMES[1:], ["audit"]):
        line = refused(tmp_path, *command, database_url="sqlite:///signals.db")
        assert re.match(f"signals: {text}".replace("FOLDER", str(tmp_path)), line)
        assert files(tmp_path) == before


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_compute_creates_a_complete_store_and_ends_when_a_recording_is_complete(tmp_path):
    done = run_signals(tmp_path, "compute", source=f"files:{write_bars(tmp_path / 'bars')}")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, PLAYED_OUT_NOTE)
    assert run_signals(tmp_path, "keys", "create", "--label", "me").returncode == 0
    with (tmp_path / "signals.db.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.prove
def test_a_start_that_finds_no_keys_is_refused_until_they_are_given_up(tmp_path):
    bars = write_bars(tmp_path / "bars")
    run_signals(tmp_path, "replay", "--bars", str(bars))
    (tmp_path / "signals.db-access").unlink()
    replay = ["replay", "--bars", str(bars)]
    for command in (["compute"], ["serve"], ["serve", "--workers", "2"], replay):
        line = refused(tmp_path, *command, source=f"files:{bars}", port=find_free_port())
        assert f"({tmp_path}/signals.db-access): restore a backup" in line
        assert "signals keys adopt" in line
        assert not (tmp_path / "signals.db-access").exists()
    assert run_signals(tmp_path, "keys", "adopt").returncode == 0
    assert run_signals(tmp_path, "compute", source=f"files:{bars}").returncode == 0
    assert run_signals(tmp_path, "keys", "list").returncode == 0


@pytest.mark.prove
def test_a_second_compute_on_a_store_is_refused_naming_the_first(tmp_path):
    bars = write_bars(tmp_path / "bars")
    run_signals(tmp_path, "replay", "--bars", str(bars))
    with (tmp_path / "signals.db.lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another signals process" in refused(tmp_path, "replay", "--bars", str(bars))


# No file may grow, as on a full disk, until one of 16 MB is deleted.
PRUNE_ON_A_FULL_DISK = """
import os, resource, sys
from service.commands.cli import main

_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def free_room(event, arguments):
    is_spare = event == "os.remove" and str(arguments[0]).endswith("signals.db-spare")
    if is_spare and os.path.exists(arguments[0]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_000_000, hard))

sys.addaudithook(free_room)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
raise SystemExit(main(["prune"]))
"""


def prune_on_a_full_disk(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRUNE_ON_A_FULL_DISK],
        env=build_environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.prove
def test_prune_works_on_a_full_disk_by_the_spare_file(tmp_path):
    run_signals(tmp_path, "replay", "--bars", str(write_bars(tmp_path / "bars")))
    assert "disk I/O error" in only_line(prune_on_a_full_disk(tmp_path).stderr)
    # With room, prune writes the spare file.
    assert run_signals(tmp_path, "prune").stdout == "pruned 0 rows\n"
    with closing(sqlite3.connect(tmp_path / "signals.db-access")) as db, db:
        db.executemany("INSERT INTO events VALUES (?, 0)", ((str(id),) for id in range(20_000)))
    done = prune_on_a_full_disk(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "pruned 20000 rows\n", "")


@pytest.mark.clause("1.34", "1.35")
@pytest.mark.parametrize(
    "command",
    ["replay", *(pytest.param(name, marks=pytest.mark.prove) for name in ("serve", "compute"))],
)
@pytest.mark.prove
def test_a_recording_is_pruned_at_its_end_like_any_other_store(tmp_path, command):
    bars, source = tmp_path / "bars", f"files:{tmp_path / 'bars'}"
    copy_newest_rows(generate_folder(5000), bars, ("BTC_1h.csv", "BTC_funding.csv"), 5000)
    if command == "replay":
        assert run_signals(tmp_path, "replay", "--bars", str(bars)).returncode == 0
    else:
        with start_signals(tmp_path, command, source=source, port=find_free_port()) as process:
            pruned = process.wait_for_event("pruned")
            assert (process.wait_for_exit() if command == "compute" else process.stop()) == 0
        assert pruned["rows"] > 0
    with closing(sqlite3.connect(tmp_path / "signals.db")) as db:
        (expired,) = db.execute(EXPIRED_ALERTS).fetchone()
        (stored,) = db.execute("SELECT count(*) FROM alerts").fetchone()
    assert (expired, stored > 0) == (0, True)
    assert run_signals(tmp_path, "prune").stdout == "pruned 0 rows\n"
    audited = run_signals(tmp_path, "audit")
    assert (audited.returncode, audited.stdout.splitlines()[-1]) == (0, "clean")


COMMANDS = {command.prog: command for command in walk_commands(_build_parser())}


# Calls that choose another function than the example of their command does.
OTHER_CALLS = ["serve --workers 2", "feed --follow"]


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
    assert suggest_command(_build_parser(), given.split()) == (
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
    assert {name for name, one in COMMANDS.items() if has_arguments(one)} - EXAMPLES.keys() == set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_a_valid_call_and_in_the_help(name):
    help_text = COMMANDS.get(name, _build_parser()).format_help()
    for example in EXAMPLES[name]:
        assert f"  {example}\n" in help_text
        called = re.sub(r'^eval "\$\((.*)\)"$', r"\1", example.partition(" > ")[0])
        called = called.replace("$(date -u +%F)", "2026-09-30")
        program, *arguments = shlex.split(called)
        assert (program, called.startswith(name)) == ("signals", True)
        assert name == "signals" or _build_parser().parse_args(arguments).run


def complete_in_bash(tmp_path, *words: str) -> list[str]:
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


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(("keys", "list"), 1), (("completion", "bash"), 1), (("connect",), 1), (("doctor",), 1)],
)
def test_output_that_cannot_be_written_is_at_most_one_line(tmp_path, arguments, status):
    create_store(tmp_path)
    run_signals(tmp_path, "keys", "create", "--label", "me")
    reader, writer = os.pipe()
    os.close(reader)
    for target, line in ((writer, ""), (os.open("/dev/full", os.O_WRONLY), "No space left")):
        done = subprocess.run(
            [*COMMAND, *arguments],
            env=build_environment(tmp_path),
            cwd=tmp_path,
            stdout=target,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(target)
        said = done.stderr.splitlines()
        assert (done.returncode, len(said)) == (status, 1 if line else 0), done.stderr
        assert line in done.stderr


@pytest.mark.parametrize("writes", ["print(1)", "raise SystemExit(1)"], ids=["here", "a library"])
def test_a_verification_whose_pipe_closes_does_not_say_that_history_changed(writes):
    script = f"""
import sys
from service.commands import cli
async def run(args): {writes}
cli._run_command = run
sys.exit(cli.main(["verify"]))
"""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", script], stdout=writer, check=False)
    os.close(writer)
    assert done.returncode == 2


@pytest.mark.parametrize(
    "path", ["", "/", "/api/v1", "/api/v1/mcp", "/api/v1/mcp/", "/mcp", "/mcp/"]
)
def test_the_address_of_a_service_is_understood_with_its_endpoints(path):
    assert parse_base_address(f"http://signals.example{path}", "--url") == "http://signals.example"


PRINT_MODULES = """
import sys
from service.commands.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
SERVING = {"serving.tool_runner", "rest_shim.endpoints", "starlette", "uvicorn"}
COMPUTING = {"compute.hourly_pipeline", "compute.universe", "numpy"}
CALLING = {"httpx", "httpx2", "mcp", "mcp_types"}
NEVER = {"jsonschema", "pydantic_settings", "rich.progress", "stripe"}
SQLITE, POSTGRES = {"aiosqlite"}, {"asyncpg"}
ALL = SERVING | COMPUTING | CALLING | NEVER | SQLITE | POSTGRES


def loaded(
    folder: Path, *arguments: str, program: str = PRINT_MODULES, **settings: str
) -> set[str]:
    """Return the modules that are loaded when a program ends in the folder of a store."""
    create_store(folder)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=build_environment(folder, port="1", api_key="ek_none", **settings),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return set(done.stderr.splitlines()[-1].split())


IMPORT_AND_PRINT_MODULES = "import sys, {}; print(*sys.modules, file=sys.stderr)"


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["keys", "create", "--label", "me"], SQLITE),
        pytest.param(["sign-in"], SQLITE, marks=pytest.mark.prove),
        pytest.param(["--help"], set(), marks=pytest.mark.prove),
        pytest.param(["keys", "list"], SQLITE, marks=pytest.mark.prove),
        pytest.param(["access-requests"], SQLITE, marks=pytest.mark.prove),
        pytest.param(["backup"], SQLITE, marks=pytest.mark.prove),
        pytest.param(["prune"], {"numpy"} | SQLITE, marks=pytest.mark.prove),
        (["verify", "--answers"], {"httpx2", "jsonschema"}),
        pytest.param(["verify"], {"httpx2"}, marks=pytest.mark.prove),
        pytest.param(["audit"], COMPUTING | SQLITE, marks=pytest.mark.prove),
        (["state", "BTC"], {"httpx2"}),
        pytest.param(["completion", "bash"], set(), marks=pytest.mark.prove),
        (["stdio"], CALLING - {"httpx"} | SERVING - {"rest_shim.endpoints"}),
        pytest.param(
            ["doctor"], COMPUTING | SQLITE | {"mcp_types", "starlette"}, marks=pytest.mark.prove
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
@pytest.mark.sampled(3)
def test_a_command_loads_only_the_libraries_that_it_needs(tmp_path, arguments, needed):
    assert loaded(tmp_path, *arguments) & ALL - needed == set()


@pytest.mark.clause("postgres")
@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["keys", "list"], set()),
        pytest.param(["prune"], set(), marks=pytest.mark.prove),
        pytest.param(["audit"], COMPUTING, marks=pytest.mark.prove),
        # For its operations port.
        pytest.param(
            ["compute"],
            COMPUTING | SERVING - {"rest_shim.endpoints"} | {"mcp_types"},
            marks=pytest.mark.prove,
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
@pytest.mark.prove
def test_a_command_on_postgresql_does_not_load_sqlite(tmp_path, arguments, needed):
    # A database that cannot be reached is waited for, and a wrong parameter ends the command.
    url = "postgresql://127.0.0.1:1/signals?sslmode=wrong"
    assert loaded(tmp_path, *arguments, database_url=url) & ALL - needed == POSTGRES


def test_serving_loads_no_sdk_payment_or_progress_library(tmp_path):
    loaded_modules = loaded(
        tmp_path, program=IMPORT_AND_PRINT_MODULES.format("service.commands.serve")
    )
    unwanted = NEVER | SQLITE | POSTGRES | {"mcp"}
    assert loaded_modules & {"service.commands.serve", *unwanted} == {"service.commands.serve"}
    # Its compute process has them.
    assert not [name for name in loaded_modules if name.partition(".")[0] == "compute"]


@pytest.mark.prove
def test_the_compute_process_loads_no_server_and_no_tools(tmp_path):
    imported = (
        "service.processes.child_process, service.commands.compute_command, service.http.resources"
    )
    loaded_modules = loaded(tmp_path, program=IMPORT_AND_PRINT_MODULES.format(imported))
    # Its resources include the HTTP client for the documents of OAuth clients.
    assert loaded_modules & ALL == COMPUTING | {"httpx2"}
