"""The latest snapshot is read once per version, and past ones are those that were served.

Response bodies build each form once, and the cache stays within its size.
"""

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import httpx
import pytest

from mcp_server.tools.get_confluence import GET_CONFLUENCE
from mcp_server.tools.get_state import GET_STATE
from schemas.vocabulary import (
    DAY_MS,
    INDICATOR_IDS,
    READING_NAMES,
    RUN_DELAY_MS,
    SourceKind,
    format_instant,
)
from serving.context import Context
from serving.response_cache import ResponseBody, ResponseCache
from serving.snapshot import Snapshot
from serving.snapshot_cache import SnapshotCache, calculate_percent
from store.market_rows import Batch, ChangeRow, CheckpointRow, PastKey, StoredSnapshot, WatermarkRow
from store.sql.market_store import MarketStore
from store.store_errors import StoreError
from tests.support.bad_inputs import STATE
from tests.support.example_market import (
    ASSETS,
    HOUR_MS,
    NOON,
    make_batch,
    make_change,
    make_coverage,
    seed_market,
)
from tests.support.row_builders import make_bar, make_blocks, make_epoch
from tests.support.running_service import RunningService, Transport
from tests.support.store_homes import (
    DEADLINE_S,
    StoreHome,
    open_and_close,
    open_market_as,
    wait_for_version,
)
from tests.support.web_page import check_page

pytestmark = pytest.mark.clause("feed", "fresh")


class CountingStore(MarketStore):
    def __init__(self, engine) -> None:
        super().__init__(engine)
        self.snapshots = 0
        self.rebuilt: list[PastKey] = []
        self.is_loading = asyncio.Event()
        self.is_failing = False

    async def snapshot(self) -> StoredSnapshot:
        self.snapshots += 1
        return await super().snapshot()

    async def past_snapshot(self, key, readings) -> StoredSnapshot:
        self.is_loading.set()
        if self.is_failing:
            raise StoreError("lost")
        self.rebuilt.append(key)
        return await super().past_snapshot(key, readings)


@pytest.fixture
async def counting(tmp_path):
    async with open_and_close(open_market_as(CountingStore, tmp_path / "market.db")) as store:
        await seed_market(store, make_coverage())
        yield store


async def test_concurrent_callers_share_one_read_per_version(counting):
    boards = SnapshotCache(counting)
    held = await asyncio.gather(*(boards.snapshot() for _ in range(20)))
    assert counting.snapshots == 1
    assert all(board is held[0] for board in held)
    await counting.commit(make_batch(NOON + HOUR_MS, []))
    assert (await boards.snapshot()).market_time == NOON + HOUR_MS
    assert held[0].market_time == NOON
    assert counting.snapshots == 2


async def test_a_checkpoint_of_the_log_keeps_the_snapshot_and_its_cached_responses(counting):
    boards = SnapshotCache(counting)
    before = await boards.snapshot()
    seen = counting.version()
    await counting.feed_log.save_checkpoint(CheckpointRow(0, "note", "vkey"))
    await wait_for_version(counting, seen)
    assert boards.peek() is None
    assert await boards.snapshot() is before
    assert boards.peek() is before


@pytest.mark.clause("monitoring")
async def test_every_instant_of_a_run_has_the_same_snapshot(counting):
    boards = SnapshotCache(counting)
    run = NOON - 5 * HOUR_MS  # Inside a nominal batch of many runs.
    held = [await boards.snapshot_at(at) for at in [run, run + 1, run + 17, run + HOUR_MS - 1]]
    assert all(board == held[0] for board in held)
    assert {*counting.rebuilt} == {PastKey(None, run, run + HOUR_MS - 1)}
    assert await boards.snapshot_at(run - 1) != held[0]
    # Of a commit: any time until the next one.
    late = await boards.snapshot_at(NOON + 1)
    assert await boards.snapshot_at(NOON + 300 * DAY_MS) == late
    assert len({*counting.rebuilt}) == 3


async def test_a_caller_that_leaves_or_a_store_that_fails_spoils_no_other_call(counting):
    boards = SnapshotCache(counting)
    callers = [asyncio.create_task(boards.snapshot_at(NOON)) for _ in range(3)]
    async with asyncio.timeout(DEADLINE_S):
        await counting.is_loading.wait()
    callers[0].cancel()
    left, *others = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(left, asyncio.CancelledError)
    assert others[0] == others[1] is not None
    counting.is_failing = True
    with pytest.raises(StoreError):
        await boards.snapshot_at(NOON - HOUR_MS)
    counting.is_failing = False
    assert (await boards.snapshot_at(NOON - HOUR_MS)).market_time == NOON - HOUR_MS


class UncachedSnapshots(SnapshotCache):
    """Reads the ledger again for every past snapshot."""

    async def snapshot_at(self, at: int) -> Snapshot | None:
        return await SnapshotCache(self.store).snapshot_at(at)


def make_context(snapshots: SnapshotCache, now: int) -> Context:
    return Context(snapshots, "", "", lambda: now, None, 1000)


CALLS = [
    (GET_STATE, {}),
    (GET_STATE, {"ticker": "BTC,MATIC,DARK", "direction": "bullish"}),
    (GET_CONFLUENCE, {"min_agree": 1}),
]


async def answer(context: Context, at: int) -> list[str]:
    """Return the results of all calls for a time, or the error that refuses it."""
    results = []
    for tool, filters in CALLS:
        query = tool.query(**filters, as_of=format_instant(at))
        try:
            result = await tool.handler(query, context)
        except Exception as error:
            results.append(repr(error))
        else:
            results.append(result.model_dump_json(by_alias=True))
    return results


def list_steps() -> list[Batch | str]:
    """Return commits of every kind after the seeded ones, and the other writes by name."""
    runs = [NOON + n * HOUR_MS for n in range(12)]
    hour = (NOON - RUN_DELAY_MS) // 1000
    turned = [
        make_change(runs[4] + n, "XAU", key, "1d", 1, -1) for n, key in enumerate(("enzo", "llnr"))
    ]
    spread = [
        make_change(runs[n], "BTC", "llnr", "1h", 1 - 2 * (n % 2), 2 * (n % 2) - 1)
        for n in (5, 6, 7, 8)
    ]
    bars = make_blocks(*(make_bar("BTC", hour - back * 3600) for back in range(9, 0, -1)))
    again = make_blocks(make_bar("BTC", hour - 6 * 3600 - 1800), revision=1)
    late = [WatermarkRow("ETH", hour, late=("1h",))]
    new = make_blocks(*(make_bar("ETH", hour + back * 3600) for back in range(5)))
    last = make_batch(runs[11], [make_change(runs[11], "DARK", "enzo", "1h", 1)])
    return [
        replace(make_batch(runs[1], []), bars=bars, written_at=runs[1] + 9),
        replace(make_batch(runs[4], turned), written_at=runs[4], watermarks=late),
        replace(make_batch(runs[8], spread), watermarks=[WatermarkRow("BTC", hour)]),
        replace(make_batch(runs[9], []), bars=new, written_at=runs[9]),
        replace(make_batch(runs[10], []), bars=again, written_at=runs[10] + 60_000),
        replace(make_batch(runs[10], []), epochs=[make_epoch()], written_at=runs[10] + 90_000),
        "coverage",
        replace(last, written_at=runs[11]),
        "prune",
        replace(make_batch(runs[11] + 40 * DAY_MS, []), written_at=runs[11] + 40 * DAY_MS),
        "prune",
    ]


async def write(store: MarketStore, step: Batch | str) -> None:
    if step == "prune":
        await store.prune()
    elif step == "coverage":
        coverage = make_coverage("live")
        await store.publish_coverage(coverage.model_copy(update={"assets": coverage.assets[:-1]}))
    else:
        await store.commit(step)


@pytest.mark.clause("answers", "1.11")
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_no_answer_from_an_extended_ledger_differs_whatever_is_written(home: StoreHome):
    async with (
        open_and_close(home.open_market()) as writer,
        open_and_close(home.open_market()) as store,
    ):
        await seed_market(writer, make_coverage())
        warm, cold = SnapshotCache(store), UncachedSnapshots(store)
        runs = [NOON + n * HOUR_MS for n in range(-2, 12)]
        distinct = set()
        for step in list_steps():
            seen = store.version()
            await write(writer, step)
            await wait_for_version(store, seen)
            now = (await store.progress()).market_time + 2 * HOUR_MS
            beside = {at + by for at in (now - 365 * DAY_MS, *runs) for by in (-1, 0)}
            for at in sorted(at for at in beside if at <= now):
                expected = await answer(make_context(cold, now), at)
                assert await answer(make_context(warm, now), at) == expected, format_instant(at)
                distinct.update(expected)
        assert len(distinct) > 200


READERS, CALLS_OF_EACH, VERSIONS = 6, 10, 6
LOGGED = tuple(indicator for indicator in INDICATOR_IDS if indicator != "perpkit")
COVERED = [asset for asset in ASSETS if asset.removed_on is None]


def side(run: int) -> int:
    return 1 if run % 2 else -1


def turned(run: int) -> list[ChangeRow]:
    """Return the changes of a run, in which every cell changes to the run's reading."""
    created_at = NOON + run * HOUR_MS
    cells = [
        (asset.ticker, indicator, timeframe)
        for asset in ASSETS
        for indicator in (*INDICATOR_IDS, *(["dexter"] * (asset.ticker in {"BTC", "MATIC"})))
        for timeframe in asset.timeframes
    ]
    return [
        make_change(created_at + place, *cell, side(run), -side(run))
        for place, cell in enumerate(cells)
    ]


def run_of(answer: dict[str, Any]) -> int:
    return (milliseconds(answer["meta"]["as_of"]) - NOON) // HOUR_MS


def milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def check_state(answer: dict[str, Any]) -> None:
    readings = [
        reading
        for asset in answer["assets"]
        for cells in asset["signals"].values()
        for reading in cells.values()
    ]
    assert answer["as_of"] == answer["meta"]["as_of"]
    assert set(readings) == {READING_NAMES[side(run_of(answer))]}
    assert answer["counts"] == {"assets": len(answer["assets"]), "readings": len(readings)}
    assert len(readings) == len(turned(1))


def check_signals(answer: dict[str, Any]) -> None:
    """Check that a page begins with the last row of the run in its meta, and has no gaps."""
    run, rows, page = run_of(answer), answer["signals"], answer["pagination"]
    published = [row for r in range(run, run - 4, -1) for row in reversed(turned(r))]
    expected = [row for row in published if row.published][: len(rows)]
    assert [row["id"] for row in rows] == [row.id for row in expected]
    assert [row["created_at"] for row in rows] == [
        format_instant(row.created_at) for row in expected
    ]
    assert [row["direction"] for row in rows] == [READING_NAMES[row.after] for row in expected]
    assert page["returned"] == len(rows) == page["limit"]
    assert page["next_cursor"] == rows[0]["created_at"]


def check_confluence(answer: dict[str, Any]) -> None:
    reading = READING_NAMES[side(run_of(answer))]
    assert len(answer["results"]) == (
        len([a for a in COVERED if "4h" in a.timeframes]) if reading == "bullish" else 0
    )
    assert {vote for result in answer["results"] for vote in result["votes"].values()} <= {reading}


def check_flips(answer: dict[str, Any]) -> None:
    flips = [flip for group in answer["groups"] for flip in group["flips"]]
    assert {flip["to"] for flip in flips} == {READING_NAMES[side(run_of(answer))]}
    assert answer["counts"] == {"groups": len(answer["groups"]), "flips": len(flips)}
    assert len(flips) == len(LOGGED) * len([a for a in ASSETS if "1h" in a.timeframes])
    newest = max(milliseconds(flip["created_at"]) for flip in flips)
    assert (newest - NOON) // HOUR_MS == run_of(answer)


CHECKED_CALLS: tuple[tuple[str, dict[str, Any], Any], ...] = (
    ("signals_get_state", {}, check_state),
    ("signals_get_signals", {"limit": 120}, check_signals),
    ("signals_get_confluence", {"min_agree": 6}, check_confluence),
    ("signals_get_flips", {"timeframe": "1h", "hours": 3}, check_flips),
    ("signals_get_signals", {"limit": 3, "offset": 0}, check_signals),
)


async def read(
    served: RunningService, transport: Transport, first: int, seen: Counter[int]
) -> None:
    """Call one tool after another until enough versions were read; none is older than before."""
    newest, number = 0, first
    while number < first + CALLS_OF_EACH or len(seen) < VERSIONS:
        number += 1
        tool, arguments, check = CHECKED_CALLS[number % len(CHECKED_CALLS)]
        answer = await served.fetch_answer(transport, tool, **arguments)
        check(answer)
        assert run_of(answer) >= newest
        newest = run_of(answer)
        seen[newest] += 1


async def commit_runs(served: RunningService, readers: Iterable[asyncio.Task[None]]) -> int:
    """Commit runs while readers are active; return the last one."""
    run = 4
    while not all(reader.done() for reader in readers):
        run += 1
        served.clock.now = NOON + run * HOUR_MS + 60_000
        await served.market.commit(make_batch(NOON + run * HOUR_MS, turned(run)))
    return run


@pytest.mark.prove
async def test_every_result_read_while_runs_commit_is_of_one_version(served: RunningService):
    for run in range(1, 5):
        await served.market.commit(make_batch(NOON + run * HOUR_MS, turned(run)))
    served.clock.now = NOON + 4 * HOUR_MS + 60_000
    seen = Counter[int]()
    transports: tuple[Transport, ...] = ("mcp", "rest")
    async with asyncio.TaskGroup() as group:
        readers = [
            group.create_task(read(served, transport, number, seen))
            for number in range(READERS)
            for transport in transports
        ]
        last = await group.create_task(commit_runs(served, readers))
    assert seen.total() >= 2 * READERS * CALLS_OF_EACH
    assert run_of(await served.fetch_answer("mcp", "signals_get_state")) == last


@pytest.mark.clause("4.7.19")
async def test_pages_read_one_by_one_while_runs_commit_lose_and_repeat_no_row(
    served: RunningService,
):
    """Poll with `since` while runs commit; every published row must be read once."""
    rows: list[str] = []
    since = format_instant(NOON + HOUR_MS)
    for run in range(2, 8):
        committing = asyncio.create_task(
            served.market.commit(make_batch(NOON + run * HOUR_MS, turned(run)))
        )
        served.clock.now = NOON + run * HOUR_MS + 60_000
        while True:
            was_committed = committing.done()
            page = await served.fetch_answer("rest", "signals_get_signals", since=since, limit=200)
            assert page["pagination"]["has_more"] is False
            rows += [row["id"] for row in reversed(page["signals"])]
            since = page["pagination"]["next_cursor"] or since
            if was_committed:
                break
        await committing
    assert rows == [row.id for run in range(2, 8) for row in turned(run) if row.published]


TEXT = '{"note":"a \\"quoted\\" text, é, \\u2028, \\\\ and\\ttabs"}'.encode()


def test_every_character_is_escaped_as_pythons_encoder_does():
    characters = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000, 97)]))
    plain = json.dumps(characters, ensure_ascii=False)
    escaped = ResponseBody(plain.encode()).escaped
    assert f'"{escaped.decode()}"' == json.dumps(plain, ensure_ascii=False)


def test_what_does_not_change_with_the_time_is_built_once():
    answer = ResponseBody(TEXT)
    for form in ("escaped", "etag", "gzip_bytes"):
        assert getattr(answer, form) is getattr(answer, form)


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_the_compressed_form_is_the_whole_text_in_one_member(size: int):
    answer = ResponseBody(json.dumps({"a": "x" * size}).encode())
    # As HTTP clients do, which stop at the end of the first member.
    inflater = zlib.decompressobj(31)
    assert inflater.decompress(answer.gzip_bytes) == answer.text
    assert (inflater.eof, inflater.unused_data) == (True, b"")


def test_exactly_equal_texts_have_equal_tags():
    assert ResponseBody(TEXT).etag == ResponseBody(bytes(TEXT)).etag
    assert ResponseBody(TEXT + b" ").etag != ResponseBody(TEXT).etag


def fill(
    cache: ResponseCache, sizes: dict[str, int], now: int = 1, until: int | None = 100
) -> None:
    for key, size in sizes.items():
        cache.put(key, ResponseBody(b"x" * size), now, until)


@pytest.mark.parametrize(
    ("early", "requested", "last", "kept"),
    [
        ([{"a": 130, "b": 130}], "", {"c": 130}, ["b", "c"]),
        ([{"a": 130, "b": 130}], "a", {"c": 130}, ["a", "c"]),
        ([{"a": 130, "b": 130}], "", {"c": 400}, []),
        # A response replaces the one with its key, and long keys count too.
        ([{"a": 160}] * 5, "", {"b": 130}, ["a", "b"]),
        ([{"a" * 990: 1}], "", {"b" * 990: 1}, ["b" * 990]),
    ],
)
def test_the_responses_requested_longest_ago_are_evicted(
    early: list[dict[str, int]], requested: str, last: dict[str, int], kept: list[str]
):
    cache = ResponseCache(max_bytes=1000)
    for sizes in early:
        fill(cache, sizes)
    assert requested == "" or cache.get(requested, 1) is not None
    fill(cache, last)
    assert [key for key in early[0] | last if cache.get(key, 1) is not None] == kept


def test_all_responses_expire_at_the_same_time():
    cache = ResponseCache()
    fill(cache, {"a": 1}, now=10)
    fill(cache, {"b": 1}, now=50)
    # It took longer to render.
    fill(cache, {"e": 1}, now=40)
    assert [cache.get(key, 60) is not None for key in "abe"] == [1, 1, 1]
    assert [cache.get("a", now) is not None for now in (9, 10, 99, 100)] == [0, 1, 1, 0]
    fill(cache, {"c": 1}, now=200)
    fill(cache, {"d": 1}, now=200, until=None)
    assert cache.get("d", 10**15) is not None
    # Nothing of the time before is left if the clock is set back.
    assert [cache.get(key, 60) for key in "abcd"] == [None] * 4


BEGAN_AT = NOON - 330 * DAY_MS


async def build_until(served: RunningService, source: SourceKind, days: int) -> None:
    """Commit the first part of a history of 330 days, and another one that ends `days` later."""
    published = make_coverage(source).model_copy(update={"served_from": NOON})
    await served.market.publish_coverage(published)
    await served.market.commit(make_batch(BEGAN_AT, []))
    await served.market.commit(make_batch(BEGAN_AT + days * DAY_MS, []))


@pytest.mark.clause("7.28", "7.37", "fresh")
@pytest.mark.parametrize("transport", ["mcp", "rest"])
@pytest.mark.parametrize("source", ["simulated", "recorded"])
async def test_a_call_is_refused_with_the_share_that_is_built(
    served_empty: RunningService, transport: Transport, source: SourceKind
):
    await build_until(served_empty, source, 132)  # 132 of 330 days are 40 %.
    until = format_instant(BEGAN_AT + 132 * DAY_MS)
    await served_empty.check_refusal(
        transport,
        STATE,
        503,
        "unavailable",
        "40 % done",
        f"built up to {until}, needed up to {format_instant(NOON)}",
        "Retry after 5 seconds.",
    )
    assert (await served_empty.get_api("/state")).headers["retry-after"] == "5"


@pytest.mark.clause("7.37", "fresh")
async def test_live_markets_are_served_with_their_first_asset(served_empty: RunningService):
    published = make_coverage("live").model_copy(update={"served_from": NOON})
    await served_empty.market.publish_coverage(published)
    rows = [WatermarkRow(ticker, -1, history="building") for ticker in ("BTC", "ETH")]
    begun = dict.fromkeys(("BTC", "ETH"), NOON)
    batch = make_batch(NOON, [])
    await served_empty.market.commit(replace(batch, watermarks=rows, publish_from=begun))
    answer = await served_empty.get_api("/state")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "No asset has its history yet." in answer.json()["message"]
    first = make_batch(NOON, [make_change(NOON + 1, "BTC", "reversals", "1h", 1)])
    await served_empty.market.commit(replace(first, watermarks=rows[1:]))
    state = (await served_empty.get_api("/state")).json()
    assert [asset["ticker"] for asset in state["assets"]] == ["BTC"]
    assert state["meta"]["building_assets"] == ["ETH"]


@pytest.mark.clause("7.37", "fresh")
async def test_the_first_whole_history_is_served_at_once(served_empty: RunningService):
    await build_until(served_empty, "simulated", 329)
    assert (await served_empty.get_api("/state")).status_code == 503
    await served_empty.market.commit(make_batch(NOON, []))
    assert (await served_empty.get_api("/state")).json()["meta"]["as_of"] == format_instant(NOON)


@pytest.mark.clause("7.37", "pages")
async def test_a_page_shows_the_share_that_is_built_and_reloads_itself(
    served_empty: RunningService,
):
    await build_until(served_empty, "simulated", 132)
    answer = await served_empty.get_page("/", is_member=True)
    page = check_page(answer, 503, "Not ready yet")
    assert "40 % done" in page.text
    (bar,) = page.find_all("progress")
    assert (bar["value"], bar["max"]) == ("40", "100")
    assert (answer.headers["refresh"], answer.headers["retry-after"]) == ("5", "5")


@pytest.mark.clause("operation")
@pytest.mark.prove
async def test_everything_else_works_while_the_history_is_built(served_empty: RunningService):
    await build_until(served_empty, "simulated", 132)
    client, key = served_empty.client, served_empty.key_headers
    reads = ("", "/catalog", "/openapi.json", "/usage", "/signals/sample")
    for path in (*(f"/api/v1{read}" for read in reads), "/", "/docs", "/sign-in", "/healthz"):
        assert (await client.get(path, headers=key)).status_code == 200, path
    assert (await served_empty.get_page("/settings/api-access", is_member=True)).status_code == 200
    ready: httpx.Response = await client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["state"]) == (503, "not computed yet")
    refused = await served_empty.call(STATE)
    assert json.loads(refused["content"][0]["text"])["error"] == "unavailable"


@pytest.mark.clause("operation")
@pytest.mark.parametrize(
    ("first", "last", "percent"),
    [(None, None, 0), (100, 100, 0), (100, 149, 49), (100, 200, 100), (200, 200, 0)],
)
def test_the_share_is_that_between_the_first_commit_and_the_end(
    first: int | None, last: int | None, percent: int
):
    assert calculate_percent(first, last, 200) == percent
