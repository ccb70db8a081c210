"""`signals feed --follow` as a process: its output, its program, and a kill at any point."""

import asyncio
import csv
import fcntl
import io
import json
import shutil
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from service.commands.cli import _build_parser
from service.terminal.commands import follow_feed
from service.terminal.follow import CursorError, CursorFile
from service.terminal.views import RowPrinter
from tests.service.commands.test_cli import only_line
from tests.support.example_market import NOON, make_coverage
from tests.support.running_service import RunningService, run_service, skip_sleep
from tests.support.signals_command import COMMAND, ENDS_WITHIN_S, build_environment, run_signals

pytestmark = pytest.mark.clause("22.2")

KEY = "ek_" + "k" * 43
BEGINNING = "2026-09-30T00:00:00Z"
# Adds the row to a file, then kills the command that runs it before it can save the place.
KILLING = "cat >> rows; kill -9 $PPID"


@pytest.fixture
async def recording(tmp_path: Path, seeded: Path):
    """A service whose data are a recording that has ended, so that following it ends too."""
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    async with run_service(tmp_path) as running:
        await running.market.publish_coverage(make_coverage("recorded", recorded_until=NOON))
        yield running


async def follow(service: RunningService, *arguments: str) -> None:
    """Follow a feed that ends, in this process."""
    args = _build_parser().parse_args(["feed", "--follow", "--since", BEGINNING, *arguments])
    status = await follow_feed(
        *(args, service.base_url, service.api_key, ""),
        wall_clock=lambda: NOON,
        elapsed=lambda: 0,
        sleep=skip_sleep,
    )
    assert status == 0


async def read_rows(service: RunningService) -> list[dict[str, Any]]:
    answer = await service.fetch_answer(
        "rest", "signals_get_signals", order="oldest", since=BEGINNING
    )
    return answer["signals"]


async def follow_until_killed(service: RunningService, folder: Path, program: str) -> int:
    """Run the command as a process; return its exit status."""
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "feed", "--follow", "--url", service.base_url, "--since", BEGINNING),
        *("--cursor", "cursor", "--exec", program),
        cwd=folder,
        env=build_environment(folder, api_key=service.api_key),
        stderr=PIPE,
    )
    await asyncio.wait_for(process.communicate(), ENDS_WITHIN_S)
    assert process.returncode is not None
    return process.returncode


async def test_a_killed_command_continues_where_it_was(recording: RunningService, tmp_path: Path):
    folder = tmp_path / "client"
    folder.mkdir()
    assert await follow_until_killed(recording, folder, KILLING) == -9
    assert await follow_until_killed(recording, folder, "cat >> rows") == 0
    ids = [json.loads(line)["id"] for line in (folder / "rows").read_text().splitlines()]
    wanted = [row["id"] for row in await read_rows(recording)]
    # The kill came before the place of the first row was saved.
    assert ids == [wanted[0], *wanted]
    assert (folder / "cursor").read_text().strip() == (await read_rows(recording))[-1]["created_at"]


@pytest.mark.prove
async def test_killed_at_every_row_it_still_hands_on_each(
    recording: RunningService, tmp_path: Path
):
    folder = tmp_path / "client"
    folder.mkdir()
    wanted = [row["id"] for row in await read_rows(recording)]
    # The second time that it gets a row, the program accepts it and kills at the next.
    program = "cat > row; if grep -qFf row rows; then exit 0; fi; cat row >> rows; kill -9 $PPID"
    (folder / "rows").touch()
    kills = 0
    while await follow_until_killed(recording, folder, program) == -9:
        kills += 1
    ids = [json.loads(line)["id"] for line in (folder / "rows").read_text().splitlines()]
    assert (ids, kills) == (wanted, len(wanted))


async def test_rows_are_printed_as_one_table(recording: RunningService, capsys):
    await follow(recording, "--ticker", "BTC")
    printed = capsys.readouterr()
    lines = [line for line in printed.out.splitlines() if "[debug" not in line]
    assert lines[0].startswith("RECORDED, as of 2026-09-30 12:03 UTC")
    assert lines[1].startswith("TIME (UTC)        TICKER")
    rows = [row for row in await read_rows(recording) if row["ticker"] == "BTC"]
    assert [line.split()[2] for line in lines[2:]] == ["BTC"] * len(rows)
    assert len({line.index("101.5") for line in lines[2:]}) == 1
    assert printed.err.splitlines()[-1].endswith(
        "the recording has ended, so no more rows will come"
    )


async def test_rows_are_printed_as_json_and_as_csv(recording: RunningService, capsys):
    rows = await read_rows(recording)
    meta = {"source": "recorded", "simulated": False, "stale": False}
    capsys.readouterr()
    for chosen in ("json", "csv"):
        print_row = RowPrinter(chosen)
        for row in rows:
            await print_row(row, meta)
    printed = capsys.readouterr().out.splitlines(keepends=True)
    assert [json.loads(line) for line in printed[: len(rows)]] == [
        {**row, "meta": meta} for row in rows
    ]
    records = list(csv.DictReader(io.StringIO("".join(printed[len(rows) :]))))
    assert [record["id"] for record in records] == [row["id"] for row in rows]
    assert {record["source"] for record in records} == {"recorded"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit", "5"], "--limit does not go with --follow"),
        (["--order", "newest"], "--order does not go with --follow"),
        (["--json", "--exec", "true"], "--json and --csv do not go with --exec and --post"),
        (["--post", "http://h/"], "SIGNALS_WEBHOOK_SECRET must be whsec_"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, arguments, message):
    done = run_signals(tmp_path, "feed", "--follow", "--cursor", "c", *arguments, api_key=KEY)
    assert done.returncode == 1
    assert message in only_line(done.stderr)


@pytest.mark.parametrize("option", ["--exec", "--post", "--cursor"])
def test_options_of_following_need_it(tmp_path, option):
    done = run_signals(tmp_path, "feed", option, "x", api_key=KEY)
    assert done.returncode == 1
    assert only_line(done.stderr) == f"signals: {option} needs --follow"


async def test_without_a_cursor_it_says_what_a_restart_loses(recording: RunningService, capsys):
    await follow(recording, "--exec", "true")
    assert "without --cursor FILE, rows that come while" in capsys.readouterr().err


@pytest.mark.clause("22.9")
async def test_a_second_command_with_the_same_cursor_file_is_refused(
    recording: RunningService, tmp_path: Path
):
    cursor = tmp_path / "cursor"
    with (tmp_path / "cursor.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CursorError) as refused:
            await follow(recording, "--cursor", str(cursor))
    assert str(refused.value) == (
        f"another command follows with the cursor file {cursor}: stop it, or choose another "
        "--cursor"
    )
    assert not cursor.exists()
    with CursorFile(cursor), pytest.raises(CursorError, match="another command follows"):
        await follow(recording, "--cursor", str(cursor))
    await follow(recording, "--cursor", str(cursor))
    assert cursor.exists()
