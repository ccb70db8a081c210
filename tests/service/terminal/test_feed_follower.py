"""The follower hands on every row of a real feed, in order, wherever it is killed."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from service.terminal.follow import CursorError, CursorFile, FeedFollower, Retrier, TransientError
from tests.mcp_server.tools.test_get_signals_alerts import ALERTS, publish_alerts
from tests.support.example_market import HOUR_MS, NOON, make_batch, make_coverage, make_flips
from tests.support.running_service import RunningService, skip_sleep
from verifier.client import Answer, ServiceClient, ServiceError

pytestmark = pytest.mark.clause("22.2", "feed")

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

    async def __call__(self, row: dict[str, Any], meta: dict[str, Any]) -> None:
        assert meta["source"] in {"simulated", "recorded"}
        self.rows.append(row)

    @property
    def ids(self) -> list[str]:
        return [row["id"] for row in self.rows]


class DatedClient(ServiceClient):
    """A client of a service whose header Date has the time of its clock, which tests set."""

    def __init__(self, service: RunningService) -> None:
        super().__init__(service.base_url, service.api_key)
        self._clock = service.clock

    async def read_view(self, *args: Any) -> Answer:
        return (await super().read_view(*args))._replace(sent_at=self._clock.now)


async def follow(
    service: RunningService,
    receiver: Receiver,
    *steps: Callable[[], Awaitable[None]],
    since: str | None = BEGINNING,
    **filters: str,
) -> list[float]:
    """Follow the feed, with one step at each pause; return the pauses in seconds."""
    pauses = Pauses(*steps)
    async with DatedClient(service) as client:
        follower = FeedFollower(client, filters, receiver, pauses, receiver.saved.append)
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
        async def __call__(self, row: dict[str, Any], meta: dict[str, Any]) -> None:
            attempts.append(row["id"])
            if attempts.count(row["id"]) < 3:
                raise TransientError("later")
            await super().__call__(row, meta)

    receiver = Refusing()
    ids = await read_ids(served_alone, ticker="BTC", since=BEGINNING)
    steps = [no_step] * (2 * len(ids))
    assert await follow(served_alone, receiver, *steps, ticker="BTC") == [*[1, 2] * len(ids), 3420]
    assert attempts == [id_ for id_ in ids for _ in range(3)]
    assert receiver.ids == ids


async def no_step() -> None:
    """Do nothing at a pause."""


class Killing(Receiver):
    """Stops the follower after one of its steps: each row is handed on, then its place saved."""

    def __init__(self, cursor: CursorFile, kill_after: int) -> None:
        super().__init__()
        self._cursor = cursor
        self._left = kill_after

    async def __call__(self, row: dict[str, Any], meta: dict[str, Any]) -> None:
        await super().__call__(row, meta)
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
                follower = FeedFollower(client, {}, receiver, Pauses(), receiver.save)
                with pytest.raises(StopError):
                    await follower.follow(cursor.load() or BEGINNING)
        assert list(dict.fromkeys(receiver.ids)) == ids
        assert len(receiver.ids) - len(ids) == kill_after % 2


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


@pytest.mark.parametrize("text", ["", "yesterday", "2026-09-30", "\xff" * 10])
def test_a_file_that_is_no_cursor_is_refused_and_kept(tmp_path: Path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(CursorError, match="is not a cursor file: it must hold one time"):
        CursorFile(path).load()
    assert path.read_text(encoding="latin-1") == text


def test_a_cursor_file_in_a_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(CursorError, match="cannot write the cursor file"):
        CursorFile(tmp_path / "missing" / "cursor").save("2026-09-30T12:03:00.068Z")
    with pytest.raises(CursorError, match="cannot read the cursor file"):
        CursorFile(tmp_path).load()
