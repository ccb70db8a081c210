"""Follows the feed: polls when new rows can have come, and hands each on, in order."""

from collections.abc import Callable, Mapping
from datetime import datetime

from schemas.vocabulary import POLL_INTERVAL_S
from service.terminal.deliveries import Deliver
from service.terminal.retry import Retrier
from service.terminal.service_client import Answer, Json, ServiceClient, ServiceError
from verifier.times import parse_served_time

PAGE_LIMIT = 200
# A run begins at `nothing_new_before` and commits some seconds later.
COMMIT_S = 20
# Followers share these seconds, so that a service does not get all polls at once.
SPREAD_S = 10


class FeedFollower:
    """Hands each row that matches the filters to `deliver`, at least once.

    A page or row in a form that is not the feed's raises a LookupError, TypeError or ValueError.

    The place in the feed is the `created_at` of the last row. It is saved after each row, so if the
    process is killed at any point, a restart hands on at most one row again.
    """

    def __init__(
        self,
        client: ServiceClient,
        filters: Mapping[str, str],
        deliver: Deliver,
        retrier: Retrier,
        save: Callable[[str], None] = lambda instant: None,
    ) -> None:
        """`save` is called with each new place in the feed."""
        self._client = client
        self._filters = dict(filters)
        self._deliver = deliver
        self._retrier = retrier
        self._save = save

    async def find_newest(self) -> str:
        """Return the place after all rows that have come so far, and save it."""
        page = (await self._read_page({"limit": "1"})).body
        # Without any row, those to come are later than the newest run.
        newest: str = page["pagination"]["next_cursor"] or page["meta"]["as_of"]
        parse_served_time(newest)
        self._save(newest)
        return newest

    async def follow(self, since: str) -> None:
        """Hand on the rows after a time; return when a recording has no more."""
        while True:
            answer = await self._read_page(
                {"since": since, "order": "oldest", "limit": str(PAGE_LIMIT)}
            )
            page = answer.body
            for row in page["signals"]:
                await self._hand_on(row, page["meta"])
                since = row["created_at"]
            if page["pagination"]["has_more"]:
                if not page["signals"]:
                    raise ServiceError("the service claims more rows and sends none: report it")
                continue
            if is_over(page["meta"]):
                return
            await self._retrier.wait(
                compute_pause_s(page["meta"]["nothing_new_before"], answer.sent_at), SPREAD_S
            )

    async def _read_page(self, window: Mapping[str, str]) -> Answer:
        arguments = self._filters | dict(window)
        return await self._retrier.retry(lambda: self._client.read_view("signals", arguments))

    async def _hand_on(self, row: Json, meta: Json) -> None:
        parse_served_time(row["created_at"])
        await self._retrier.retry(lambda: self._deliver(row, meta))
        self._save(row["created_at"])


def compute_pause_s(nothing_new_before: str | None, sent_at: int | None) -> float:
    """Return the seconds until the next poll, from what an answer says and when it was sent.

    Without either, new rows may come any time: it is the recommended interval of polls.
    """
    if nothing_new_before is None or sent_at is None:
        return POLL_INTERVAL_S
    # Both times are the service's, so a wrong clock of this machine does no harm.
    due_at = datetime.fromisoformat(nothing_new_before).timestamp()
    return max(due_at - sent_at / 1000, 0) + COMMIT_S


def is_over(meta: Json) -> bool:
    """Return true if no run will follow, because the data are a finished recording."""
    return not any(meta["next_update"].values())
