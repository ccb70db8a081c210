"""Runs the commands that read a service: one call and its output, or the feed until stopped.

Following polls when new rows can have come, and hands each on, in order. What may succeed later is
repeated, with growing pauses that count time in suspend too.
"""

import asyncio
import os
import random
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeVar, get_args

from schemas.errors import ArgumentsError, OperatorError
from schemas.vocabulary import POLL_INTERVAL_S, Clock, Side
from service.commands.console import ProgressLog, echo, open_progress_bar
from service.processes.lifecycle import lock_file
from service.terminal.deliveries import (
    USER_AGENT,
    BodyTemplate,
    Deliver,
    Messenger,
    RefusalError,
    WebhookSender,
    hide_argument,
    parse_post_url,
    parse_webhook_secret,
    run_program,
)
from service.terminal.views import (
    VIEWS,
    Format,
    RowPrinter,
    build_event,
    encode_json,
    print_answer,
)
from verifier.client import (
    Answer,
    Json,
    ServiceClient,
    ServiceError,
    TransientError,
    format_time,
    parse_served_time,
    walk_feed,
)
from verifier.report import VerifyError

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 300.0
# Timers of the event loop stop while the machine is suspended.
MAX_STEP_S = 30.0

# A run begins at `nothing_new_before` and commits some seconds later.
COMMIT_S = 20
# Followers share these seconds, so that a service does not get all polls at once.
SPREAD_S = 10

FOLLOW_OPTIONS = ("exec", "post", "notify", "body", "per_run", "when", "cursor")
# Before all rows.
FIRST_INSTANT = "1970-01-01T00:00:00.000Z"
PAGE_OPTIONS = ("limit", "offset", "order")
NO_CURSOR = (
    "signals: without --cursor FILE, rows that come while this program does not run are not "
    "handed on, and rows that a receiver refuses are not kept"
)
MAX_MIN_AGREE = 6

Sleep = Callable[[float], Awaitable[None]]
# Returns a random number from 0 to 1.
Spread = Callable[[], float]
T = TypeVar("T")


@dataclass
class Retrier:
    """Waits and retries. `elapsed` is a clock in ms that counts time in suspend.

    `on_failure` is called with one line for each failure that is going to be retried.
    """

    elapsed: Clock
    sleep: Sleep
    spread: Spread
    on_failure: Callable[[str], None]

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first attempt that raises no TransientError.

        Pauses double up to MAX_PAUSE_S, each shortened by up to a half.
        """
        longest = FIRST_PAUSE_S
        while True:
            try:
                return await attempt()
            except TransientError as error:
                # Clients that lost a service at the same moment must not all come back together.
                pause = max(longest * (1 - self.spread() / 2), error.retry_after_s)
                self.on_failure(f"{error}; trying again in {pause:.0f} s")
            longest = min(2 * longest, MAX_PAUSE_S)
            await self.wait(pause)

    async def wait(self, seconds: float, spread_s: float = 0) -> None:
        """Wait some seconds, and up to `spread_s` more."""
        ends_at = self.elapsed() + 1000 * (seconds + spread_s * self.spread())
        while (remaining_ms := ends_at - self.elapsed()) > 0:
            await self.sleep(min(remaining_ms / 1000, MAX_STEP_S))


class CursorFile:
    """A file with one line: the `created_at` of the last row that was handed on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> str | None:
        """Return the time in the file, None if there is no file yet."""
        try:
            text = self._path.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OperatorError(
                f"cannot read the cursor file {self._path}: {error.strerror}"
            ) from None
        try:
            parse_served_time(text)
        except ValueError:
            raise OperatorError(
                f"{self._path} is not a cursor file: it must hold one time such as "
                "2026-09-30T12:03:00.068Z. Choose another --cursor, or delete the file to begin "
                "with new rows"
            ) from None
        return text

    def save(self, instant: str) -> None:
        """Replace the time in the file: a kill or a power cut leaves the old one or the new one."""
        new_path = self._path.with_name(f"{self._path.name}.new")
        try:
            _write_durably(new_path, "wb", f"{instant}\n".encode())
            new_path.replace(self._path)
        except OSError as error:
            raise OperatorError(
                f"cannot write the cursor file {self._path}: {error.strerror}"
            ) from None

    def park(self, rows: Sequence[Json], reason: str) -> Path:
        """Append rows that a receiver refused to the file beside this one; return its path."""
        path = self._path.with_name(self._path.name + ".parked")
        lines = [encode_json({"refused": reason, "row": row}) + b"\n" for row in rows]
        try:
            _write_durably(path, "ab", b"".join(lines))
        except OSError as error:
            raise OperatorError(f"cannot write {path}: {error.strerror}") from None
        return path


def _write_durably(path: Path, mode: Literal["wb", "ab"], content: bytes) -> None:
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


# Returns the rows of a run that meet a condition, and gets the answer that they came with.
Choose = Callable[[Sequence[Json], Answer], Awaitable[Sequence[Json]]]


@dataclass
class ConfluenceCondition:
    """Chooses the rows on whose asset and timeframe enough indicators agree in their direction."""

    client: ServiceClient
    retrier: Retrier
    least: int

    async def __call__(self, run: Sequence[Json], page: Answer) -> Sequence[Json]:
        """Return the rows that met it right after their run: one call per timeframe and side."""
        committed_at = datetime.fromisoformat(run[-1]["created_at"]) + timedelta(seconds=COMMIT_S)
        # The run that is the latest one is asked for as such: the service refuses a later time.
        sent_at = page.sent_at or parse_served_time(page.body["meta"]["as_of"]).timestamp() * 1000
        is_past = committed_at.timestamp() * 1000 < sent_at
        dated = {"as_of": format_time(committed_at)} if is_past else {}
        agreeing: dict[tuple[str, str], set[str]] = {}
        for row in run:
            key = timeframe, direction = row["timeframe"], row["direction"]
            if key in agreeing or direction not in get_args(Side):
                continue
            arguments = {"timeframe": timeframe, "direction": direction, **dated}
            arguments["min_agree"] = min(self.least, MAX_MIN_AGREE)
            answer = await self.retrier.retry(
                partial(self.client.read_view, "confluence", arguments)
            )
            # The legacy key does not count twice.
            agreeing[key] = {
                one["ticker"]
                for one in answer.body["results"]
                if one.get("current_agree", one["agree"]) >= self.least
            }
        return [
            row
            for row in run
            if row["ticker"] in agreeing.get((row["timeframe"], row["direction"]), ())
        ]


@dataclass
class FeedFollower:
    """Hands each row that matches the filters to `deliver`, at least once.

    A page or row in a form that is not the feed's raises a LookupError, TypeError or ValueError.

    The place in the feed is the `created_at` of the last row. `save` is called with it after each
    delivery, so if the process is killed at any point, a restart repeats at most one. `park` is
    called with events that were refused, before their place is saved. With `per_run`, the rows of a
    run are one delivery.
    """

    client: ServiceClient
    filters: Mapping[str, str]
    deliver: Deliver
    retrier: Retrier
    save: Callable[[str], None] = lambda instant: None
    park: Callable[[Sequence[Json], str], None] = lambda rows, reason: None
    choose: Choose | None = None
    per_run: bool = False

    async def find_newest(self) -> str:
        """Return the place after all rows that have come so far, and save it."""
        page = (await self._read_page({**self.filters, "limit": "1"})).body
        # Without any row, those to come are later than the newest run.
        newest: str = page["pagination"]["next_cursor"] or page["meta"]["as_of"]
        parse_served_time(newest)
        self.save(newest)
        return newest

    async def follow(self, since: str) -> None:
        """Hand on the rows after a time; return when a recording has no more."""
        while True:
            held: list[Json] = []
            async for answer in walk_feed(self._read_page, since, self.filters):
                meta = answer.body["meta"]
                # A run writes its rows within its hour. The next page may have more of the last
                # one, for which only a delivery by run waits.
                rows = [*held, *answer.body["signals"]]
                runs = [list(run) for _, run in groupby(rows, lambda row: row["created_at"][:13])]
                has_more = answer.body["pagination"]["has_more"]
                held = runs.pop() if self.per_run and has_more and runs else []
                for run in runs:
                    chosen = await self.choose(run, answer) if self.choose else run
                    batches = [chosen] if self.per_run else [[row] for row in chosen]
                    for batch in filter(None, batches):
                        try:
                            await self.retrier.retry(partial(self.deliver, batch, meta))
                        except RefusalError as error:
                            self.park([build_event(row, meta) for row in batch], str(error))
                        since = batch[-1]["created_at"]
                        self.save(since)
                    if since != run[-1]["created_at"]:
                        since = run[-1]["created_at"]
                        self.save(since)
            if is_over(meta):
                return
            pause_s = compute_pause_s(meta.get("nothing_new_before"), answer.sent_at)
            await self.retrier.wait(pause_s, SPREAD_S)

    async def _read_page(self, arguments: Json) -> Answer:
        return await self.retrier.retry(partial(self.client.read_view, "signals", arguments))


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
    return not any((meta.get("next_update") or {}).values())


# Returns the variable that names the proxy to an address, and the proxy's own address.
FindProxy = Callable[[str], tuple[str, str] | None]


async def read_service(args: Namespace, address: str, api_key: str, find_proxy: FindProxy) -> int:
    """Print the view that a command names; return the exit status."""
    for name in FOLLOW_OPTIONS if args.view == "feed" else ():
        if getattr(args, name) not in (None, False):
            raise ArgumentsError(f"--{name.replace('_', '-')} needs --follow")
    shows_changes = args.view == "state" and args.changes
    view, arguments = VIEWS["changes" if shows_changes else args.view], collect_arguments(args)
    # The table of states shows prices and ages too.
    if shows_changes or (args.view == "state" and choose_format(args) == "table"):
        arguments["detail"] = "changes"
    with explain_failures(address):
        async with ServiceClient(address, api_key, USER_AGENT, find_proxy(address)) as client:
            answer = await client.read_view(view.name, arguments)
        print_answer(answer, view, choose_format(args))
    return 0


async def read_whole_feed(
    args: Namespace,
    address: str,
    api_key: str,
    find_proxy: FindProxy,
    wall_clock: Clock,
    elapsed: Clock,
    sleep: Sleep = asyncio.sleep,
) -> int:
    """Print all rows that the service keeps, or those after --since, oldest first."""
    _refuse_options(args, (*PAGE_OPTIONS, *FOLLOW_OPTIONS), "--all")
    printer = RowPrinter(choose_format(args))
    retrier = Retrier(elapsed, sleep, random.random, lambda text: echo(f"signals: {text}"))
    filters = {name: text for name, text in collect_arguments(args).items() if name != "since"}
    bar = open_progress_bar("reading", ProgressLog("reading", wall_clock))
    async with ServiceClient(address, api_key, USER_AGENT, find_proxy(address)) as client:

        async def read_page(arguments: Json) -> Answer:
            return await retrier.retry(partial(client.read_view, "signals", arguments))

        with explain_failures(address), bar as on_progress:
            begun_at = None
            async for answer in walk_feed(read_page, args.since or FIRST_INSTANT, filters):
                rows, has_more = answer.body["signals"], answer.body["pagination"]["has_more"]
                await printer(rows, answer.body["meta"])
                if rows and has_more:
                    begun_at = begun_at or parse_served_time(rows[0]["created_at"])
                    whole = parse_served_time(answer.body["meta"]["as_of"]) - begun_at
                    part = parse_served_time(rows[-1]["created_at"]) - begun_at
                    on_progress(int(part.total_seconds()), int(whole.total_seconds()))
            on_progress(1, 1)
    return 0


async def follow_feed(
    args: Namespace,
    address: str,
    api_key: str,
    find_proxy: FindProxy,
    webhook_secret: str,
    wall_clock: Clock,
    elapsed: Clock,
    sleep: Sleep = asyncio.sleep,
    notify_url: str = "",
) -> int:
    """Hand each new row to the program or the address of the user, or print it, until stopped.

    Return 0 when a recording has no more rows. `elapsed` is a clock in ms that cannot be set.
    """
    _refuse_options(args, PAGE_OPTIONS, "--follow")
    deliver = _open_delivery(args, find_proxy, webhook_secret, notify_url, wall_clock)
    cursor = None if args.cursor is None else CursorFile(args.cursor)

    def park(rows: Sequence[Json], reason: str) -> None:
        kept = f"not kept: {encode_json(rows).decode()}"
        if cursor is not None:
            kept = f"parked in {cursor.park(rows, reason)}"
        echo(f"signals: {reason}; {kept}")

    retrier = Retrier(elapsed, sleep, random.random, lambda text: echo(f"signals: {text}"))
    filters = {name: text for name, text in collect_arguments(args).items() if name != "since"}
    async with ServiceClient(address, api_key, USER_AGENT, find_proxy(address)) as client:
        save = cursor.save if cursor else lambda instant: None
        choose = args.when and ConfluenceCondition(client, retrier, args.when)
        follower = FeedFollower(
            client, filters, deliver, retrier, save, park, choose, per_run=args.per_run
        )
        with lock_file(args.cursor) if cursor else nullcontext(), explain_failures(address):
            if isinstance(deliver, WebhookSender) and args.body is not None:
                # An error of the template shows now, not with the first row.
                sample = partial(client.read_view, "signals/sample", is_open=True)
                page = (await retrier.retry(sample)).body
                for row in page["signals"]:
                    deliver.build_body(row, page["meta"])
            since = (cursor and cursor.load()) or args.since or await follower.find_newest()
            echo(f"signals: following the rows after {since}; Ctrl-C stops")
            await follower.follow(since)
    echo("signals: the recording has ended, so no more rows will come")
    return 0


def _refuse_options(args: Namespace, names: Iterable[str], reader: str) -> None:
    """Raise ArgumentsError for options that do not go with one which reads row after row."""
    for name in names:
        if getattr(args, name) not in (None, False):
            raise ArgumentsError(f"--{name} does not go with {reader}, which reads every row")


@contextmanager
def explain_failures(address: str) -> Iterator[None]:
    """Raise an OperatorError for a failed call, or if an answer lacks what the block reads."""
    try:
        yield
    except VerifyError as error:
        is_bad_call = isinstance(error, ServiceError) and error.status == 400
        raise (ArgumentsError if is_bad_call else OperatorError)(str(error)) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise OperatorError(
            f"{address} answered in a form that this version does not know: read it with --json, "
            "or upgrade"
        ) from None


def collect_arguments(args: Namespace) -> dict[str, str]:
    """Return the arguments of the call: the options of the command that were given."""
    values: dict[str, str | None] = {name: getattr(args, name) for name in args.parameters}
    if tickers := getattr(args, "tickers", None):
        values["ticker"] = ",".join(tickers)
    return {name: value for name, value in values.items() if value is not None}


def choose_format(args: Namespace) -> Format:
    """Return the chosen format of the output."""
    if args.json:
        return "json"
    return "csv" if args.csv else "table"


def _open_delivery(
    args: Namespace,
    find_proxy: FindProxy,
    webhook_secret: str,
    notify_url: str,
    wall_clock: Clock,
) -> Deliver:
    if args.body is not None and args.post is None:
        raise ArgumentsError("--body needs --post")
    if args.per_run and args.exec is args.notify is None:
        raise ArgumentsError("--per-run needs --notify or --exec")
    if args.exec is args.post is args.notify is None:
        return RowPrinter(choose_format(args))
    if args.json or args.csv:
        raise ArgumentsError("--json and --csv do not go with --exec, --post and --notify")
    if args.cursor is None:
        echo(NO_CURSOR)
    if args.exec is not None:
        return partial(run_program, args.exec)
    hide_argument(args.notify or args.post or "")
    if args.notify is not None:
        return Messenger(args.notify or notify_url)
    key = parse_webhook_secret(webhook_secret)
    url = parse_post_url(args.post)
    return WebhookSender(
        url,
        key,
        wall_clock,
        find_proxy(url),
        None if args.body is None else BodyTemplate(args.body),
    )
