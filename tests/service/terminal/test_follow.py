"""The follower hands on every row, in order, wherever it is killed, with pauses that grow."""

import asyncio
import csv
import fcntl
import io
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from schemas.errors import OperatorError
from service.commands.cli import _build_parser
from service.config.settings import find_proxy
from service.terminal.commands import (
    ConfluenceCondition,
    CursorFile,
    FeedFollower,
    Retrier,
    TransientError,
    compute_pause_s,
    follow_feed,
    read_whole_feed,
)
from service.terminal.deliveries import RefusalError
from service.terminal.views import RowPrinter
from tests.doubles.fixed_answers import KEY
from tests.mcp_server.tools.test_get_signals import ALERTS, publish_alerts
from tests.support.example_market import HOUR_MS, NOON, make_batch, make_coverage, make_flips
from tests.support.running_service import RunningService, skip_sleep
from tests.support.signals_command import COMMAND, ENDS_WITHIN_S, build_environment, run_signals
from verifier.client import Answer, Json, ServiceClient, ServiceError

pytestmark = pytest.mark.clause("22.2", "22.3", "feed")

SENT_AT = 1_790_769_980_000  # 2026-09-30T12:06:20Z


class FakeTime:
    """A clock in ms that only sleeping moves; `slept` has the seconds of each sleep."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self) -> int:
        return round(1000 * sum(self.slept))

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def fail(count: int, *retry_after_s: int):
    """Return an attempt that fails some times, then returns its number."""
    attempts = iter(range(count + 1))

    async def attempt() -> int:
        number = next(attempts)
        if number < count:
            raise TransientError(f"failure {number}", *retry_after_s)
        return number

    return attempt


async def test_pauses_double_up_to_five_minutes_until_an_attempt_succeeds():
    time, failures = FakeTime(), []
    assert await Retrier(time, time.sleep, lambda: 0.0, failures.append).retry(fail(11)) == 11
    assert sum(time.slept) == 1 + 2 + 4 + 8 + 16 + 32 + 64 + 128 + 256 + 300 + 300
    assert (failures[0], len(failures)) == ("failure 0; trying again in 1 s", 11)


@pytest.mark.parametrize(
    ("spread", "retry_after_s", "pauses"),
    [
        # In suspend no timer runs, so the clock is read again after each short sleep.
        (0.0, [3600], [30.0] * 240),
        (1.0, [], [0.5, 1, 2]),
    ],
)
async def test_pauses_are_as_long_as_the_other_side_asks_for_and_spread_by_up_to_a_half(
    spread: float, retry_after_s: list[int], pauses: list[float]
):
    time = FakeTime()
    retrier = Retrier(time, time.sleep, lambda: spread, lambda text: None)
    await retrier.retry(fail(2 if retry_after_s else 3, *retry_after_s))
    assert time.slept == pauses


async def test_an_error_that_would_come_again_is_not_retried():
    time = FakeTime()
    retrier = Retrier(time, time.sleep, lambda: 0.0, lambda text: None)

    async def attempt() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await retrier.retry(attempt)
    assert time.slept == []


@pytest.mark.parametrize(
    ("nothing_new_before", "sent_at", "pause_s"),
    [
        # 56 minutes and 40 seconds, and 20 seconds for the commit.
        ("2026-09-30T13:03:00.000Z", SENT_AT, 3420),
        ("2026-09-30T12:03:00.000Z", SENT_AT, 20),
        (None, SENT_AT, 900),
        ("2026-09-30T13:03:00.000Z", None, 900),
    ],
)
def test_the_next_poll_is_when_new_rows_can_have_come(nothing_new_before, sent_at, pause_s):
    assert compute_pause_s(nothing_new_before, sent_at) == pause_s


BEGINNING = "2026-09-30T00:00:00.000Z"
LATER = NOON + HOUR_MS


class StopError(Exception):
    """The command was stopped, or killed."""


class Pauses(Retrier):
    """Waits without time: runs the next step at each pause, and stops the follower after the last.

    `seconds` has the length of each pause.
    """

    def __init__(self, *steps: Callable[[], Awaitable[None]]) -> None:
        super().__init__(lambda: 0, skip_sleep, lambda: 0.0, lambda text: None)
        self.seconds: list[float] = []
        self._steps = [*steps]

    async def wait(self, seconds: float, spread_s: float = 0) -> None:
        self.seconds.append(seconds)
        if not self._steps:
            raise StopError
        await self._steps.pop(0)()


@dataclass
class Receiver:
    """Receives rows, and the places that the follower saves."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)

    async def __call__(self, rows: Sequence[Json], meta: Json) -> None:
        assert meta["source"] in {"simulated", "recorded"}
        self.rows += rows

    @property
    def ids(self) -> list[str]:
        return [row["id"] for row in self.rows]


class DatedClient(ServiceClient):
    """A client of a service whose header Date, if any, has the time that tests set its clock to."""

    def __init__(self, service: RunningService, *, is_dated: bool = True) -> None:
        super().__init__(service.base_url, service.api_key)
        self._clock = service.clock if is_dated else None

    async def read_view(self, *args: Any) -> Answer:
        return (await super().read_view(*args))._replace(sent_at=self._clock and self._clock.now)


async def follow(
    service: RunningService,
    receiver: Receiver,
    *steps: Callable[[], Awaitable[None]],
    since: str | None = BEGINNING,
    least: int | None = None,
    per_run: bool = False,
    is_dated: bool = True,
    **filters: str,
) -> list[float]:
    """Follow the feed, with one step at each pause; return the pauses in seconds.

    `least` is the number of the condition of confluence.
    """
    pauses = Pauses(*steps)
    async with DatedClient(service, is_dated=is_dated) as client:
        follower = FeedFollower(
            *(client, filters, receiver, pauses, receiver.saved.append),
            choose=None if least is None else ConfluenceCondition(client, pauses, least),
            per_run=per_run,
        )
        with suppress(StopError):
            await follower.follow(since or await follower.find_newest())
    return pauses.seconds


async def read_ids(service: RunningService, **arguments: str) -> list[str]:
    """Return the ids of all rows of the feed, oldest first."""
    answer = await service.fetch_answer(
        "mcp", "signals_get_signals", limit=200, order="oldest", **arguments
    )
    return [row["id"] for row in answer["signals"]]


async def test_it_hands_on_a_backlog_of_several_pages_in_order(served_alone: RunningService):
    flips = make_flips(LATER, 450)
    await served_alone.market.commit(make_batch(LATER, flips))
    receiver = Receiver()
    await follow(served_alone, receiver)
    assert receiver.ids[-450:] == [flip.id for flip in flips]
    assert len(set(receiver.ids)) == len(receiver.rows) == 458
    assert receiver.saved == [row["created_at"] for row in receiver.rows]


@pytest.mark.clause("operation")
async def test_the_whole_feed_is_printed_once_oldest_first_over_several_pages(
    served_alone: RunningService, capsys: pytest.CaptureFixture[str]
):
    flips = make_flips(LATER, 450)
    await served_alone.market.commit(make_batch(LATER, flips))
    args = _build_parser().parse_args(["feed", "--all", "--csv"])
    with capture_logs():
        status = await read_whole_feed(
            *(args, served_alone.base_url, served_alone.api_key, find_proxy),
            wall_clock=lambda: 0,
            elapsed=lambda: 0,
        )
    captured = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(captured.out)))
    assert (status, len(rows), [row["id"] for row in rows[-450:]]) == (
        0,
        458,
        [flip.id for flip in flips],
    )
    assert captured.err.splitlines()[-1].startswith("reading: 100%")


async def test_it_begins_with_the_rows_that_come_after_its_start(served_alone: RunningService):
    async def commit() -> None:
        await served_alone.market.commit(make_batch(LATER, make_flips(LATER, 2)))

    receiver = Receiver()
    await follow(served_alone, receiver, commit, since=None)
    assert receiver.ids == [flip.id for flip in make_flips(LATER, 2)]
    # The place is saved before any row came, so that a kill loses none.
    assert receiver.saved[0] < receiver.rows[0]["created_at"]


async def test_it_begins_without_rows_at_the_newest_run(served_alone: RunningService):
    receiver = Receiver()
    await follow(
        served_alone, receiver, lambda: publish_alerts(served_alone), since=None, tier="alerts"
    )
    assert receiver.ids == [alert.id for alert in ALERTS]


async def test_it_hands_on_only_the_rows_that_match(served_alone: RunningService):
    receiver = Receiver()
    await follow(served_alone, receiver, ticker="NVDA", timeframe="1d")
    assert receiver.ids == await read_ids(served_alone, ticker="NVDA", timeframe="1d")
    assert len(receiver.rows) == 1


@pytest.mark.clause("22.3")
async def test_it_polls_at_the_time_that_the_answer_names(served_alone: RunningService):
    # Bars of ETH are late, and may come within three minutes of the run: every 15 minutes.
    served_alone.clock.now = NOON + 60_000

    async def deliver_late_bars() -> None:
        await served_alone.market.commit(make_batch(LATER, []))
        served_alone.clock.now = LATER + 200_000

    pauses = await follow(served_alone, Receiver(), deliver_late_bars)
    # The second answer was sent 3400 s before the next run, which takes 20 s to commit.
    assert pauses == [900, 3400 + 20]


async def test_it_ends_when_a_recording_has_no_more_rows(served_alone: RunningService):
    await served_alone.market.publish_coverage(make_coverage("recorded", recorded_until=NOON))
    receiver = Receiver()
    assert await follow(served_alone, receiver) == []
    assert receiver.ids == await read_ids(served_alone, since=BEGINNING)


class EndlessClient(DatedClient):
    """A client of a service that claims more rows without sending one."""

    async def read_view(self, *args: Any) -> Answer:
        answer = await super().read_view(*args)
        answer.body["signals"].clear()
        answer.body["pagination"]["has_more"] = True
        return answer


async def test_a_page_that_claims_more_without_rows_is_an_error(served_alone: RunningService):
    async with EndlessClient(served_alone) as client:
        follower = FeedFollower(client, {}, Receiver(), Pauses(), lambda at: None)
        with pytest.raises(ServiceError, match="claims more rows and sends none"):
            await follower.follow(BEGINNING)


@pytest.mark.clause("22.7")
async def test_a_row_that_is_not_taken_is_handed_on_again_before_the_next(
    served_alone: RunningService,
):
    attempts: list[str] = []

    class Refusing(Receiver):
        async def __call__(self, rows: Sequence[Json], meta: Json) -> None:
            attempts.extend(row["id"] for row in rows)
            if attempts.count(attempts[-1]) < 3:
                raise TransientError("later")
            await super().__call__(rows, meta)

    receiver = Refusing()
    ids = await read_ids(served_alone, ticker="BTC", since=BEGINNING)
    steps = [no_step] * (2 * len(ids))
    assert await follow(served_alone, receiver, *steps, ticker="BTC") == [*[1, 2] * len(ids), 3420]
    assert (attempts, receiver.ids) == ([id_ for id_ in ids for _ in range(3)], ids)


async def no_step() -> None:
    """Do nothing at a pause."""


class Killing(Receiver):
    """Stops the follower after one of its steps.

    Each row is handed on, or refused and parked, then its place saved.
    """

    def __init__(self, cursor: CursorFile, kill_after: int) -> None:
        super().__init__()
        self._cursor = cursor
        self._left = kill_after

    async def __call__(self, rows: Sequence[Json], meta: Json) -> None:
        if rows[0]["ticker"] == "ETH":
            raise RefusalError("no")
        await super().__call__(rows, meta)
        self._pass_step()

    def park(self, rows: Sequence[Json], reason: str) -> None:
        assert reason == "no"
        self._cursor.park(rows, reason)
        self.rows += rows
        self._pass_step()

    def save(self, instant: str) -> None:
        self._cursor.save(instant)
        self._pass_step()

    def _pass_step(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise StopError


async def test_killed_at_any_point_it_loses_no_row_and_repeats_at_most_one(
    served_alone: RunningService, tmp_path: Path
):
    ids = await read_ids(served_alone, since=BEGINNING)
    for kill_after in range(1, 2 * len(ids) + 1):
        cursor = CursorFile(tmp_path / f"cursor{kill_after}")
        receiver = Killing(cursor, kill_after)
        async with ServiceClient(served_alone.base_url, served_alone.api_key) as client:
            for _ in ("killed", "started again"):
                follower = FeedFollower(
                    client, {}, receiver, Pauses(), receiver.save, receiver.park
                )
                with pytest.raises(StopError):
                    await follower.follow(cursor.load() or BEGINNING)
        assert list(dict.fromkeys(receiver.ids)) == ids
        assert len(receiver.ids) - len(ids) == kill_after % 2
        kept = (tmp_path / f"cursor{kill_after}.parked").read_text().splitlines()
        # A parked row has the origin of its data.
        assert [json.loads(line)["row"] for line in kept] == [
            row for row in receiver.rows if "meta" in row
        ]


def test_a_cursor_file_is_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "feed.cursor"
    cursor = CursorFile(path)
    assert cursor.load() is None
    cursor.save("2026-09-30T12:03:00.068Z")
    with path.open() as opened:
        cursor.save("2026-09-30T13:03:00.001Z")
        assert opened.read() == "2026-09-30T12:03:00.068Z\n"
    assert cursor.load() == "2026-09-30T13:03:00.001Z"
    assert [one.name for one in tmp_path.iterdir()] == ["feed.cursor"]


def test_a_cursor_is_on_the_disk_before_it_replaces_the_old_one_and_a_parked_row_at_once(
    tmp_path: Path, monkeypatch
):
    cursor, old, new = (
        CursorFile(tmp_path / "cursor"),
        *(f"2026-09-30T1{n}:03:00.000Z" for n in "23"),
    )
    synced = list[tuple[bytes, str | None]]()
    cursor.save(old)

    def sync(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").read_bytes(), cursor.load()))

    monkeypatch.setattr(os, "fsync", sync)
    cursor.save(new)
    cursor.park([{"id": "a"}], "gone")
    assert synced == [
        (f"{new}\n".encode(), old),
        (b'{"refused":"gone","row":{"id":"a"}}\n', new),
    ]


@pytest.mark.parametrize("text", ["", "yesterday", "2026-09-30", "\xff" * 10])
def test_a_file_that_is_no_cursor_is_refused_and_kept(tmp_path: Path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(OperatorError, match="is not a cursor file: it must hold one time"):
        CursorFile(path).load()
    assert path.read_text(encoding="latin-1") == text


def test_a_cursor_file_in_a_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(OperatorError, match="cannot write the cursor file"):
        CursorFile(tmp_path / "missing" / "cursor").save("2026-09-30T12:03:00.068Z")
    with pytest.raises(OperatorError, match="cannot read the cursor file"):
        CursorFile(tmp_path).load()


async def run_follow(service: RunningService, *arguments: str) -> None:
    """Follow a feed that ends, in this process."""
    args = _build_parser().parse_args(["feed", "--follow", "--since", BEGINNING, *arguments])
    status = await follow_feed(
        *(args, service.base_url, service.api_key, find_proxy, ""),
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
    await run_follow(recording, "--ticker", "BTC")
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
            await print_row([row], meta)
    printed = capsys.readouterr().out.splitlines(keepends=True)
    assert [json.loads(line) for line in printed[: len(rows)]] == [
        {**row, "meta": meta} for row in rows
    ]
    records = list(csv.DictReader(io.StringIO("".join(printed[len(rows) :]))))
    assert [record["id"] for record in records] == [row["id"] for row in rows]
    assert {record["source"] for record in records} == {"recorded"}


FOLLOW = ("--follow", "--cursor", "c")


@pytest.mark.clause("22.11")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*FOLLOW, "--limit", "5"), "--limit does not go with --follow"),
        ((*FOLLOW, "--order", "newest"), "--order does not go with --follow"),
        ((*FOLLOW, "--json", "--exec", "true"), "--json and --csv do not go with --exec, --post"),
        ((*FOLLOW, "--body", "x"), "--body needs --post"),
        ((*FOLLOW, "--per-run"), "--per-run needs --notify or --exec"),
        ((*FOLLOW, "--per-run", "--post", "http://h/"), "--per-run needs --notify or --exec"),
        ((*FOLLOW, "--post", "http://h/"), "SIGNALS_WEBHOOK_SECRET must be whsec_"),
        (("--all", "--offset", "9"), "--offset does not go with --all"),
        *(
            ((option,), f"signals: {option.partition('=')[0]} needs --follow")
            for option in (
                *("--exec=x", "--post=x", "--notify", "--body=x", "--per-run"),
                *("--when=confluence>=3", "--cursor=x"),
            )
        ),
        *(
            (
                ("--follow", f"--when={text}"),
                f"'confluence>=N', with a number of indicators from 1 to 7, not {text!r}",
            )
            for text in (
                *("confluence>=0", "confluence>=8", "confluence>5", "confluence >= five"),
                *("flips>=3", ""),
            )
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, arguments, message):
    done = run_signals(tmp_path, "feed", *arguments, api_key=KEY)
    assert (done.returncode, done.stdout) == (1 if message.startswith("SIGNALS_") else 2, "")
    assert message in done.stderr.splitlines()[-1]


async def test_without_a_cursor_it_says_what_a_restart_loses(recording: RunningService, capsys):
    await run_follow(recording, "--exec", "true")
    assert "without --cursor FILE, rows that come while" in capsys.readouterr().err


@pytest.mark.clause("22.9")
async def test_a_second_command_with_the_same_cursor_file_is_refused(
    recording: RunningService, tmp_path: Path
):
    cursor = tmp_path / "cursor"
    with (tmp_path / "cursor.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OperatorError) as refused:
            await run_follow(recording, "--cursor", str(cursor))
    assert str(refused.value) == f"another command uses {cursor}: stop it, or choose another file"
    assert not cursor.exists()
    await run_follow(recording, "--cursor", str(cursor))
    assert cursor.exists()
