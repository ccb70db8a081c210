"""Runs the commands that read a service: one call and its output, or the feed until stopped."""

import asyncio
import random
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

from schemas.errors import OperatorError
from schemas.vocabulary import Clock
from service.commands.console import echo
from service.terminal.deliveries import (
    USER_AGENT,
    Deliver,
    ProgramRunner,
    WebhookSender,
    parse_post_url,
    parse_webhook_secret,
)
from service.terminal.follow import CursorFile, FeedFollower, Retrier, Sleep
from service.terminal.views import (
    BOARD,
    CONFLUENCE,
    FEED,
    FLIPS,
    STATE,
    USAGE,
    Format,
    RowPrinter,
    View,
    close_output,
    print_answer,
)
from verifier.client import ServiceClient
from verifier.report import VerifyError

VIEWS: Mapping[str, View] = {
    "state": STATE,
    "board": BOARD,
    "feed": FEED,
    "flips": FLIPS,
    "confluence": CONFLUENCE,
    "usage": USAGE,
}
FOLLOW_OPTIONS = ("exec", "post", "cursor")
PAGE_OPTIONS = ("limit", "offset", "order")
NO_CURSOR = (
    "signals: without --cursor FILE, rows that come while this program does not run are not "
    "handed on"
)


# Returns the variable that names the proxy to an address, and the proxy's own address.
FindProxy = Callable[[str], tuple[str, str] | None]


class ArgumentsError(OperatorError):
    """Arguments that exclude or need each other."""


async def read_service(args: Namespace, address: str, api_key: str, find_proxy: FindProxy) -> int:
    """Print the view that a command names; return the exit status."""
    for name in FOLLOW_OPTIONS if args.view == "feed" else ():
        if getattr(args, name) is not None:
            raise ArgumentsError(f"--{name} needs --follow")
    view = VIEWS[args.view]
    try:
        with explain_failures(address):
            async with ServiceClient(address, api_key, USER_AGENT, find_proxy(address)) as client:
                answer = await client.read_view(view.name, collect_arguments(args))
            print_answer(answer, view, choose_format(args))
    except BrokenPipeError:
        return close_output()
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
) -> int:
    """Hand each new row to the program or the address of the user, or print it, until stopped.

    Return 0 when a recording has no more rows. `elapsed` is a clock in ms that cannot be set.
    """
    for name in PAGE_OPTIONS:
        if getattr(args, name) is not None:
            raise ArgumentsError(f"--{name} does not go with --follow, which reads every new row")
    deliver = _open_delivery(args, find_proxy, webhook_secret, wall_clock)
    cursor = None if args.cursor is None else CursorFile(args.cursor)
    retrier = Retrier(elapsed, sleep, random.random, lambda text: echo(f"signals: {text}"))
    filters = {name: text for name, text in collect_arguments(args).items() if name != "since"}
    try:
        async with ServiceClient(address, api_key, USER_AGENT, find_proxy(address)) as client:
            saving = (cursor.save,) if cursor else ()
            follower = FeedFollower(client, filters, deliver, retrier, *saving)
            with cursor or nullcontext(), explain_failures(address):
                since = (cursor and cursor.load()) or args.since or await follower.find_newest()
                echo(f"signals: following the rows after {since}; Ctrl-C stops")
                await follower.follow(since)
    except BrokenPipeError:
        return close_output()
    echo("signals: the recording has ended, so no more rows will come")
    return 0


@contextmanager
def explain_failures(address: str) -> Iterator[None]:
    """Raise an OperatorError for a failed call, or if an answer lacks what the block reads."""
    try:
        yield
    except VerifyError as error:
        raise OperatorError(str(error)) from None
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
    fixed: dict[str, str] = args.fixed
    return {name: value for name, value in values.items() if value is not None} | fixed


def choose_format(args: Namespace) -> Format:
    """Return the chosen format of the output."""
    if args.json:
        return "json"
    return "csv" if args.csv else "table"


def _open_delivery(
    args: Namespace, find_proxy: FindProxy, webhook_secret: str, wall_clock: Clock
) -> Deliver:
    if args.exec is None and args.post is None:
        return RowPrinter(choose_format(args))
    if args.json or args.csv:
        raise ArgumentsError("--json and --csv do not go with --exec and --post, which get JSON")
    if args.cursor is None:
        echo(NO_CURSOR)
    if args.exec is not None:
        return ProgramRunner(args.exec)
    key = parse_webhook_secret(webhook_secret)
    url = parse_post_url(args.post)
    return WebhookSender(url, key, wall_clock, find_proxy(url))
