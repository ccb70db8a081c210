"""What a customer finds if an operator rewrites history, and what is no finding."""

import base64
import copy
import json
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.published_log import FIRST, PublishedLog, format_time, make_row
from tests.verifier.conftest import ROW_COUNT, Verify
from verifier.notes import LOG_KEY, Checkpoint, VerifierKey
from verifier.report import Report
from verifier.served_rows import Feed
from verifier.verification import compare_own

pytestmark = [pytest.mark.clause("verify"), pytest.mark.usefixtures("use_single_ca")]

LOST = 100
Row = dict[str, Any]


def read_state(state: Path) -> dict[str, bytes]:
    """Return the files of a record, without evidence."""
    files = (path for path in state.rglob("*") if path.is_file())
    return {path.name: path.read_bytes() for path in files if "evidence" not in path.name}


async def test_the_first_verification_trusts_the_key_and_records_every_row(log, verify, state):
    report = await verify()
    assert (report.status, report.findings, report.obstacles) == (0, [], [])
    assert +report.checked == {"signed checkpoint": 1, "rows in the log": ROW_COUNT}
    assert report.notes == [
        f"the key of the log is trusted from now on: {log.vkey}",
        "read the feed from 2026-02-11T11:03:00.000Z to 2026-03-13T11:03:00.000Z, 300 rows",
        "the newest row is 1 minutes old",
        "the signed checkpoint is 0 minutes old",
        "the log states no first start",
    ]
    assert (state / "vkey").read_text() == log.vkey + "\n"
    assert (state / "checkpoint").read_text() == log.checkpoint
    entries = [json.loads(line) for line in (state / "rows.jsonl").read_text().splitlines()]
    assert [one["leaf"] for one in entries] == list(range(ROW_COUNT))
    assert entries[7]["row"].items() <= log.rows[7].items()


@pytest.mark.prove
async def test_a_later_verification_checks_the_earlier_checkpoint_and_records_new_rows(
    log, verify, state
):
    await verify()
    log.publish(*map(make_row, range(ROW_COUNT, ROW_COUNT + 10)))
    report = await verify()
    assert (report.status, report.notes[0].partition(";")[2]) == (
        0,
        " compared 300 of the 300 rows of the record",
    )
    assert +report.checked == {
        "signed checkpoint": 1,
        "earlier checkpoint": 1,
        "rows as verified before": ROW_COUNT,
        "rows in the log": ROW_COUNT + 10,
    }
    assert (state / "checkpoint").read_text() == log.checkpoint
    assert len((state / "rows.jsonl").read_text().splitlines()) == ROW_COUNT + 10


async def assert_found(verify: Verify, state: Path, *expected: str) -> None:
    """Verify, and assert the findings, the evidence, and that nothing of them is saved."""
    saved = read_state(state)
    report = await verify()
    assert (report.status, report.findings) == (1, list(expected))
    (_, seen), (_, served) = report.evidence
    assert seen.encode() == saved["checkpoint"]
    assert served.startswith("127.0.0.1")
    assert read_state(state) == saved
    lines = report.format_lines()
    assert set(seen.splitlines()) | set(served.splitlines()) <= set(lines)


def describe(row) -> str:
    return f"{row['id']} of {row['created_at']}"


def republish(log: PublishedLog, *rows: Row) -> None:
    """Publish other rows than those of the fixture."""
    log.rows, log.logged = [], []
    log.publish(*rows)


def alter_checkpoint(state: Path) -> None:
    """Replace the root of the saved checkpoint, which then has a signature of another text."""
    lines = (state / "checkpoint").read_text().split("\n")
    lines[2] = base64.b64encode(bytes(32)).decode()
    (state / "checkpoint").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (alter_checkpoint, "checkpoint: it is not signed by the key in vkey"),
        (lambda state: (state / "checkpoint").write_text("me"), "checkpoint: the note has no"),
        (lambda state: (state / "checkpoint").unlink(), "checkpoint: it is missing"),
        (lambda state: (state / "vkey").unlink(), "vkey: it is missing"),
        (lambda state: (state / "rows.jsonl").unlink(), "rows.jsonl: it is missing"),
        (lambda state: (state / "rows.jsonl").write_text("{}\n"), "rows.jsonl: line 1 is damaged"),
    ],
    ids=["altered", "no note", "no checkpoint", "no key", "no rows", "a damaged row"],
)
async def test_a_damaged_record_is_no_evidence_and_verifies_nothing(
    log, verify, state, damage, reason
):
    await verify()
    damage(state)
    saved = read_state(state)
    report = await verify()
    assert (report.status, report.findings, report.evidence) == (2, [], [])
    (obstacle,) = report.obstacles
    assert obstacle.startswith("record damaged: ")
    assert reason in obstacle
    assert read_state(state) == saved


def delete_a_row(log: PublishedLog, row: Row) -> list[str]:
    log.rows.remove(row)
    return [f"{describe(row)} was deleted: the feed no longer has it"]


def change_a_price(log: PublishedLog, row: Row) -> list[str]:
    row["price"] *= 1.2
    return [f"{row['id']}: price was 97025.0, is 116430.0"]


def move_a_time(log: PublishedLog, row: Row) -> list[str]:
    before = row["created_at"]
    row["created_at"] = before.replace(":00.000Z", ":01.000Z")
    return [f'{row["id"]}: created_at was "{before}", is "{row["created_at"]}"']


def add_a_row_to_the_past(log: PublishedLog, row: Row) -> list[str]:
    added = row | {"id": "universe.ETH.enzo.1h.1.1", "ticker": "ETH"}
    added["created_at"] = added["created_at"].replace(":00.000Z", ":01.000Z")
    log.rows.append(added)
    return [f"{describe(added)} is in no leaf of the log: it was added or moved later"]


REBUILT = "the log does not extend the one seen before: its first 300 leaves have changed"


def rebuild_the_log_without_a_row(log: PublishedLog, row: Row) -> list[str]:
    found = delete_a_row(log, row)
    log.logged.pop(LOST)
    log.publish(*map(make_row, range(ROW_COUNT, ROW_COUNT + 5)))
    lost = "200 of 300 verified rows have lost their leaf"
    return [REBUILT, *found, f"leaf 100 is no longer that of {describe(row)}: {lost}"]


def rebuild_the_log_with_another_price(log: PublishedLog, row: Row) -> list[str]:
    row["price"] = log.logged[LOST]["price"] = 1.5
    log.sign()
    lost = "1 of 300 verified rows have lost their leaf"
    return [
        REBUILT,
        f"{row['id']}: price was 97025.0, is 1.5",
        f"leaf 100 is no longer that of {describe(row)}: {lost}",
    ]


def alter_a_tile(log: PublishedLog, row: Row) -> list[str]:
    tile = log.tree / "tile" / "0" / "000"
    content = tile.read_bytes()
    tile.write_bytes(content[: 32 * LOST] + bytes(32) + content[32 * LOST + 32 :])
    lost = "1 of 300 verified rows have lost their leaf"
    return [
        "the log contradicts itself: tile/0/000 does not belong to the signed checkpoint",
        f"leaf 100 is no longer that of {describe(row)}: {lost}",
    ]


def shrink_the_log(log: PublishedLog, row: Row) -> list[str]:
    gone = log.rows[290:]
    del log.rows[290:], log.logged[290:]
    log.sign()
    return [
        "the log has shrunk: it had 300 leaves, and now has 290",
        *(f"{describe(one)} was deleted: the feed no longer has it" for one in gone),
    ]


def change_the_key(log: PublishedLog, row: Row) -> list[str]:
    before = log.vkey
    log.seed = 2
    log.sign()
    return [
        f"the key of the log has changed: it was {before}, and the service states {log.vkey}",
        f"the checkpoint of {log.origin} is not signed by the key of {log.origin}",
    ]


@pytest.mark.parametrize(
    "rewrite",
    [
        *(delete_a_row, change_a_price, move_a_time, add_a_row_to_the_past),
        *(rebuild_the_log_without_a_row, rebuild_the_log_with_another_price),
        *(alter_a_tile, shrink_the_log, change_the_key),
    ],
)
async def test_what_an_operator_rewrites_is_named_with_both_checkpoints(
    log, verify, state, rewrite
):
    await verify()
    await assert_found(verify, state, *rewrite(log, log.rows[LOST]))


@pytest.mark.prove
async def test_an_old_copy_of_the_checkpoint_is_no_finding(log, verify, state):
    old = log.checkpoint
    log.publish(make_row(ROW_COUNT))
    await verify()
    saved = read_state(state)
    log.tree.joinpath("checkpoint").write_text(old)
    log.times = ""
    report = await verify()
    assert (report.status, report.findings) == (2, [])
    assert report.obstacles == [
        "an old copy of the checkpoint was served: it had 301 leaves, and now has 300; try again"
    ]
    assert read_state(state) == saved


@pytest.mark.prove
async def test_a_new_key_that_the_customer_gives_is_accepted_for_the_same_rows(log, verify, state):
    await verify()
    log.seed, log.origin = 2, "127.0.0.1/api/v1/log/2"
    log.sign()
    report = await verify(key=VerifierKey.parse(log.vkey, LOG_KEY))
    assert (report.status, report.checked["earlier checkpoint"]) == (0, 1)
    assert (state / "vkey").read_text() == log.vkey + "\n"
    assert (await verify()).status == 0


async def test_a_key_that_the_service_does_not_use_verifies_nothing(log, verify, state):
    report = await verify(key=VerifierKey.parse(PublishedLog(log.folder, seed=9).vkey, LOG_KEY))
    assert report.status == 1
    assert "is not signed by the key" in report.findings[-1]
    assert read_state(state) == {}


# Without a record of the rows

BROKEN = (
    "universe.BTC.enzo.1h.1772686800.1 of 2026-03-05T05:03:00.000Z does not continue "
    "universe.BTC.enzo.1h.1772676000.1: a row between them is missing"
)


async def test_a_row_that_was_deleted_before_the_first_verification_is_reported(log, verify):
    row = log.rows.pop(LOST)
    report = await verify()
    assert report.findings == [
        BROKEN,
        f"leaf 100 of {row['created_at']} has no row in the feed: it was deleted, or moved to "
        "another time",
    ]


async def test_a_leaf_with_a_false_time_cannot_hide_that_its_row_is_missing(log, verify):
    log.rows.pop(LOST)
    log.listed_times[LOST] = "2020-01-01T00:00:00.000Z"
    report = await verify()
    assert report.findings == [
        BROKEN,
        f"leaf 100 is listed at 2020-01-01T00:00:00.000Z, but the one before it at "
        f"{log.rows[LOST - 1]['created_at']}",
    ]


async def test_a_second_row_of_the_same_time_is_not_verified(log, verify):
    log.rows.insert(LOST, log.rows[LOST] | {"price": 1.0})
    report = await verify()
    at = log.rows[LOST]["created_at"]
    assert (report.status, report.obstacles) == (
        2,
        [f"the service sent a row of {at} after one of {at}"],
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"price": [1]}, "a list where none can be"),
        ({"id": 5}, "the id of a row is not a text"),
        ({"created_at": "2026-03-10"}, "'2026-03-10' is not a time such as"),
        ({"created_at": "99999-01-01T00:00:00.000Z"}, "is not a time such as"),
        ({"ticker": {}}, "the ticker of a row is not a text"),
        ({"price": {}}, "the price of a row is not a number"),
    ],
)
async def test_a_row_that_is_none_is_not_verified(log, verify, change, reason):
    now = log.now
    log.rows[ROW_COUNT - 2].update(change)
    report = await verify(since=FIRST, now=now)
    assert report.status == 2
    assert reason in report.obstacles[0]


async def test_a_run_before_all_times_is_not_verified(log, verify):
    log.as_of = datetime(1, 1, 1, tzinfo=UTC)
    (obstacle,) = (await verify()).obstacles
    assert "0001-01-01T00:00:00.000Z' is not a time" in obstacle


def test_evidence_cannot_control_the_terminal():
    report = Report(findings=["lost"], evidence=[("now", "example\x9b2J\u202e\n1\n")])
    evidence = ["", "now:", "", r"example\u009b2J\u202e", "1", ""]
    assert report.format_lines() == ["checked: nothing", "lost", *evidence, "1 finding"]


# Ages


async def test_rows_that_come_while_others_are_read_are_not_of_the_future(log, verify):
    start = log.now - timedelta(minutes=15)
    report = await verify(now=start, took_s=15 * 60)
    assert (report.status, report.findings) == (0, [])
    report = await verify(now=start)
    assert (report.status, len(report.findings)) == (1, 1)


@pytest.mark.parametrize(
    ("outages", "status"),
    [((70,), 2), ((70, 130, 190), 2), ((70, 130, 190, 250), 0), ((10, 130, 190, 250), 2)],
    ids=["once", "three times", "four times", "once before the last 30 days"],
)
async def test_a_pause_is_usual_only_if_it_came_four_times_in_thirty_days(
    log, verify, outages, status
):
    step = timedelta(hours=3)
    # Ten rows turn the reading eight times, so that those which follow continue it.
    left_out = {number for first in outages for number in range(first, first + 10)}
    now = FIRST + 299 * step + timedelta(hours=30)
    log.signed_at = int(now.timestamp())
    republish(log, *(make_row(number, step) for number in range(300) if number not in left_out))
    report = await verify(since=FIRST - timedelta(days=1), now=now)
    assert (report.status, report.findings) == (status, [])
    text = "the newest row is 30 hours old"
    late = [f"{text}, more than 3 hours"]
    assert report.obstacles == (late if status else [])


async def test_rows_that_no_run_has_signed_are_not_verified(log, verify):
    log.rows += map(make_row, range(ROW_COUNT, ROW_COUNT + 5))
    report = await verify()
    assert (report.status, report.findings) == (2, [])
    assert report.obstacles == [
        "the signed checkpoint is 5 hours old, more than 3 hours",
        f"5 rows since {log.rows[ROW_COUNT]['created_at']} are in no signed checkpoint yet",
    ]


@pytest.mark.prove
async def test_rows_that_have_aged_out_are_not_expected(log, verify):
    since = FIRST + timedelta(hours=60)
    assert (await verify(since=since)).status == 0
    log.rows = [row for row in log.rows if row["tier"] == "universe"]
    log.publish(make_row(105 * 24))
    report = await verify(since=since)
    assert (report.status, report.obstacles) == (0, [])
    assert "48 leaves without a row are older than 90 days: alerts are not served longer" in (
        report.notes
    )


@pytest.mark.prove
async def test_rows_older_than_any_that_is_served_do_not_count_as_newer_ones(log, verify):
    step = timedelta(hours=12)
    republish(log, *(make_row(number, step) for number in range(3 * 730)))
    kept = {"universe": log.now - timedelta(days=365), "alerts": log.now - timedelta(days=90)}
    log.rows = [row for row in log.rows if row["created_at"] > format_time(kept[row["tier"]])]
    report = await verify(since=FIRST - timedelta(days=1))
    assert (report.status, report.findings, report.obstacles) == (0, [], [])
    assert any("leaves without a row are older than 90 days" in one for one in report.notes)


async def test_a_narrow_since_leaves_the_record_and_compares_old_pages_of_it(log, verify, state):
    await verify()
    saved = read_state(state)
    log.publish(*map(make_row, range(ROW_COUNT, ROW_COUNT + 5)))
    report = await verify(since=FIRST + timedelta(hours=ROW_COUNT + 2))
    assert (report.status, report.notes[1:2]) == (
        0,
        ["the newest row is 1 minutes old"],
    )
    assert "--since leaves out rows that it does not have" in report.notes[-1]
    assert report.checked["rows as verified before"] > 100
    assert read_state(state) == saved


@pytest.mark.prove
async def test_a_service_that_states_a_future_time_cannot_let_rows_age(log, verify, state):
    await verify()
    row = log.rows.pop(LOST)
    log.as_of = FIRST + timedelta(days=900)
    await assert_found(verify, state, f"{describe(row)} was deleted: the feed no longer has it")


async def test_only_the_feed_after_a_time_is_read(log, verify):
    assert (await verify(since=FIRST + timedelta(hours=250))).checked["rows in the log"] == 49
    assert [one for one in log.requests if one.startswith("rows 2")] == [
        "rows 2026-03-11T10:03:00.000Z"
    ]


# Rows from bars of the customer's own


def flip(row: Row) -> None:
    before, after = row["transition"]["from"], row["transition"]["to"]
    row |= {"transition": {"from": after, "to": before}, "direction": before}


@pytest.mark.parametrize(
    ("change", "equal", "doubted", "status"),
    [
        (lambda rows: None, 240, 0, 0),
        # Another venue, whose prices differ a little, and one row that differs more.
        (lambda rows: [row.update(price=row["price"] * 1.001) for row in rows], 240, 0, 0),
        (lambda rows: rows[50].update(price=rows[50]["price"] * 1.1), 239, 1, 0),
        (lambda rows: [flip(row) for row in rows[100:112]], 228, 0, 0),
        (lambda rows: [flip(row) for row in rows[100:113]], 227, 0, 1),
        (lambda rows: [flip(row) for row in rows[::2]], 120, 0, 1),
        (lambda rows: [row.update(price=1.0) for row in rows[::2]], 120, 120, 1),
        (lambda rows: rows.pop(100), 239, 0, 0),
    ],
)
async def test_rows_of_own_bars_are_counted_and_each_doubt_excuses_only_its_row(
    log, verify, change, equal, doubted, status
):
    own = [copy.deepcopy(row) for row in log.rows if row["tier"] == "universe"]
    change(own)
    report = await verify(own_rows=tuple(own))
    text = f"your own bars: content equal {equal} of 240, {doubted} with another price"
    assert report.status == status
    assert any(one.startswith(text) for one in (report.findings if status else report.notes))


async def test_own_rows_of_a_withheld_cell_are_compared_and_those_of_other_assets_are_not(
    log, verify
):
    own = [copy.deepcopy(row) for row in log.rows if row["tier"] == "universe"]
    withheld = [row | {"id": row["id"].replace("enzo", "dpo"), "indicator": "dpo"} for row in own]
    report = await verify(own_rows=(*own, *withheld))
    assert report.status == 1
    assert "content equal 240 of 480, 0 with another price" in report.findings[0]
    other = own[0] | {"id": own[0]["id"].replace("BTC", "ETH"), "ticker": "ETH"}
    report = await verify(own_rows=(other,))
    assert report.obstacles == ["none of your own rows is of an asset and a time of the feed"]


@pytest.mark.parametrize(
    ("theirs", "ours", "doubted"), [(None, 1.0, 1), (1.0, None, 1), (None, None, 0), (0.0, 0.0, 0)]
)
def test_a_row_without_a_price_is_doubted_unless_both_have_none(theirs, ours, doubted):
    rows = [row for row in map(make_row, range(100)) if row["tier"] == "universe"]
    feed = [row | {"price": theirs} if number == 7 else row for number, row in enumerate(rows)]
    own = [row | {"price": ours} if number == 7 else row for number, row in enumerate(rows)]
    report = Report()
    compare_own(own, Feed("", FIRST, "live", feed, []), report)
    assert (report.findings, report.notes) == (
        [],
        [f"your own bars: content equal {80 - doubted} of 80, {doubted} with another price"],
    )


# Rows of a file


async def test_given_rows_are_verified_without_reading_the_feed(log, verify):
    report = await verify(given_rows=(log.rows[3], log.rows[299]), reads_feed=False)
    assert (report.status, report.checked["rows in the log"]) == (0, 2)
    assert not any(one.startswith("rows") for one in log.requests)


async def test_a_given_row_that_was_never_logged_is_reported(log, verify):
    changed = log.rows[3] | {"price": 1.0}
    moved = log.rows[4] | {"created_at": "2026-03-01T04:03:00.001Z"}
    report = await verify(given_rows=(changed, moved), reads_feed=False)
    assert report.findings == [
        f"{describe(changed)} differs from what leaf 3 of the log commits to",
        f"{describe(moved)} is in no leaf of the log",
    ]


@pytest.mark.parametrize(
    ("created", "now", "is_found"),
    [
        # Minutes after the newest row of the log, which comes a minute before its signature.
        (60, 61, False),
        (60, 60 + 119, False),
        (60, 60 + 121, True),
        (-29, 1, True),
        (61, 1, True),
    ],
    ids=["just now", "within 2 hours", "later", "before the last leaf", "in the future"],
)
async def test_a_given_row_that_no_run_can_have_signed_yet_is_an_obstacle(
    log, verify, created, now, is_found
):
    newest = log.now - timedelta(minutes=1)
    at = format_time(newest + timedelta(minutes=created))
    row = make_row(ROW_COUNT) | {"created_at": at}
    now = newest + timedelta(minutes=now)
    report = await verify(given_rows=(row,), reads_feed=False, now=now)
    assert (report.findings, report.obstacles) == (
        [f"{describe(row)} is in no leaf of the log"] * is_found,
        [f"{describe(row)} is in no signed checkpoint yet"] * (not is_found),
    )


# Records with gaps

STEP = timedelta(hours=6)


def make_other_row(number: int, before: str, after: str) -> Row:
    """Return a row of another asset, a minute after the row of a number."""
    row = make_row(number, STEP)
    at = FIRST + number * STEP + timedelta(minutes=1)
    return row | {
        **{"id": row["id"].replace("BTC", "ETH"), "ticker": "ETH", "direction": after},
        **{"transition": {"from": before, "to": after}, "created_at": format_time(at)},
    }


@pytest.mark.parametrize(
    ("gap", "is_withheld", "found"),
    [
        (range(0), False, 0),
        (range(0), True, 1),
        (range(5, 15), True, 1),
        # The record lacks the row of the other asset that the log has, or could have.
        (range(50, 70), False, 0),
        (range(50, 90), False, 0),
        (range(50, 70), True, 0),
    ],
)
async def test_recorded_rows_count_before_the_feed_only_after_their_last_gap(
    log, verify, state, gap, is_withheld, found
):
    others = {
        20: make_other_row(20, "bullish", "bearish"),
        60: make_other_row(60, "bearish", "bullish"),
        210: make_other_row(210, "bullish", "bearish"),
    }
    if is_withheld:
        del others[60]
    rows = [
        [make_row(number, STEP), *([others[number]] if number in others else [])]
        for number in range(230)
    ]
    republish(log, *chain(*rows[:200]))
    assert (await verify(since=FIRST - timedelta(days=1))).status == 0
    lost = {row["id"] for number in gap for row in rows[number]}
    file = state / "rows.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(one for one in lines if json.loads(one)["row"]["id"] not in lost))
    log.publish(*chain(*rows[200:]))
    report = await verify()
    assert len(report.findings) == found
    assert all("does not continue universe.ETH" in one for one in report.findings)


async def test_rows_that_were_recorded_by_themselves_accuse_no_feed(log, verify):
    republish(log, *(make_row(number, STEP) for number in range(ROW_COUNT)))
    assert (await verify(given_rows=(log.rows[2], log.rows[-1]), reads_feed=False)).status == 0
    report = await verify()
    assert (report.status, report.findings) == (0, [])


@pytest.mark.parametrize(("hours", "found"), [(1, 1), (3, 0)])
async def test_a_row_is_dated_back_by_the_time_of_the_run_that_did_not_have_it(
    log, verify, hours, found
):
    republish(log, *(make_row(number, STEP) for number in range(ROW_COUNT)))
    newest = FIRST + (ROW_COUNT - 1) * STEP
    run_at = newest + timedelta(hours=5, minutes=30)
    log.signed_at = int((run_at - timedelta(hours=2, minutes=50)).timestamp())
    log.sign()
    assert (await verify(now=run_at)).status == 0
    at = newest + timedelta(hours=hours)
    row = make_other_row(ROW_COUNT - 2, "bullish", "bearish") | {"created_at": format_time(at)}
    log.signed_at = None
    log.publish(row, make_row(ROW_COUNT, STEP))
    report = await verify()
    assert (
        report.findings
        == [
            f"{describe(row)} was published later than {format_time(run_at - timedelta(hours=1))}, "
            f"when the log had {ROW_COUNT} leaves without it"
        ][:found]
    )


# Obstacles


@pytest.mark.parametrize("fault", ["no tree", "more leaves"])
async def test_another_checkpoint_that_cannot_be_compared_is_named(log, verify, fault):
    text = log.checkpoint
    if fault == "no tree":
        log.unavailable = "Later."
        reason = "cannot be compared: no valid tree is served"
        await verify(key=VerifierKey.parse(log.vkey, LOG_KEY))
    else:
        log.publish(make_row(ROW_COUNT))
        text = log.checkpoint
        log.logged.pop()
        log.rows.pop()
        log.sign()
        reason = "has 301 leaves, more than are served"
    report = await verify(other=Checkpoint.parse(text))
    assert report.status == 2
    assert f"the checkpoint of the other customer {reason}" in report.obstacles


@pytest.mark.parametrize(
    ("fault", "obstacles"),
    [
        ({"unavailable": "The store is older."}, ["checkpoint answered 503: The store is older."]),
        ({"has_log": False}, ["key answered 404: Nothing", "checkpoint answered 404: Nothing"]),
    ],
    ids=["no checkpoint", "no log"],
)
async def test_without_a_checkpoint_the_record_is_still_compared(
    log, verify, state, fault, obstacles
):
    await verify()
    vars(log).update(fault)
    report = await verify()
    assert (report.status, report.findings, len(report.obstacles)) == (2, [], len(obstacles))
    for obstacle, part in zip(report.obstacles, obstacles, strict=True):
        assert f"/api/v1/log/{part}" in obstacle
    row = log.rows.pop(LOST)
    report = await verify()
    assert report.findings == [f"{describe(row)} was deleted: the feed no longer has it"]
    assert len(report.evidence) == 1


@pytest.mark.prove
async def test_a_large_log_is_searched_with_few_calls(log, verify):
    step = timedelta(minutes=1)
    republish(log, *(make_row(number, step) for number in range(5500)))
    report = await verify(since=FIRST + 4500 * step)
    assert (report.status, report.checked["rows in the log"]) == (0, 999)
    assert len([one for one in log.requests if one.startswith("leaves")]) <= 5
    tiles = [one for one in log.requests if one.startswith("tile/0")]
    assert len(tiles) == len(set(tiles)) <= 6
