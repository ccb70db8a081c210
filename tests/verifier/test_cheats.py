"""A dishonest operator who owns server, database, key and clock, against three customers.

The real command asks a server that lies on a real socket. Customers verify hourly, monthly or once.
docs/proof.md has the table of the cheats; the last test compares it.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from compute.signing.log_signer import build_cosigner, cosign
from schemas.errors import OperatorError
from service.commands.verify import verify_service
from tests.doubles.published_log import (
    API_KEY,
    FIRST,
    PublishedLog,
    format_time,
    make_row,
    make_start,
    serve_log,
)
from tests.support.signals_command import ROOT

pytestmark = [pytest.mark.clause("verify"), pytest.mark.usefixtures("use_single_ca")]

Row = dict[str, Any]
# When the customers come: after so many hours of the service, and some hours or days later.
BEGIN_H, HOUR_H, MONTH_H = 48, 3, 31 * 24
COMES_AFTER = {"hourly": HOUR_H, "monthly": MONTH_H, "once": None}


class Operator:
    """A service that has run for two days, and how it goes on; `now` is the customers' clock."""

    def __init__(self, folder: Path) -> None:
        self.log = PublishedLog(folder)
        self.count = 0
        self.extra = timedelta(0)
        # The first ten rows are the history of the first start.
        self.log.logged.append(make_start(FIRST + timedelta(hours=10)))
        self.log.publish(*self.compute(BEGIN_H))

    def compute(self, hours: int) -> list[Row]:
        """Return the honest rows of the next hours."""
        rows = [make_row(number) for number in range(self.count, self.count + hours)]
        self.count += hours
        return rows

    @property
    def now(self) -> datetime:
        return FIRST + timedelta(hours=self.count - 1, minutes=2) + self.extra

    def sign(self) -> None:
        self.log.signed_at = int(self.now.timestamp())
        self.log.sign()

    def publish(self, *rows: Row) -> None:
        self.log.rows += [dict(row) for row in rows]
        self.log.logged += [dict(row) for row in rows]
        self.sign()


@dataclass
class Customer:
    """Verifies with the real command; `options` are those of the command line."""

    operator: Operator
    address: str
    folder: Path
    capture: Any

    async def verify(self, **options: object) -> tuple[int, str]:
        now = int(self.operator.now.timestamp() * 1000)
        status = await verify_service(self.address, API_KEY, self.folder, lambda: now, **options)
        return status, re.sub(r"^.*request_id.*\n", "", self.capture.readouterr().out, flags=re.M)


@pytest.fixture
async def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path / "trees")


@pytest.fixture
async def customer(operator: Operator, tmp_path: Path, capsys: Any):
    async with serve_log(operator.log) as address:
        yield Customer(operator, address, tmp_path / "state", capsys)


def pick(operator: Operator, hours_ago: int) -> Row:
    """Return the served universe row of some hours ago, or the one before it."""
    rows = operator.log.rows
    place = len(rows) - 1 - hours_ago
    return rows[place] if rows[place]["tier"] == "universe" else rows[place - 1]


def go_on(operator: Operator, hours: int) -> None:
    operator.publish(*operator.compute(hours))


def delete_an_old_row(operator: Operator, hours: int) -> None:
    go_on(operator, hours)
    operator.log.rows.remove(pick(operator, hours + 40))


def change_an_old_price(operator: Operator, hours: int) -> None:
    go_on(operator, hours)
    pick(operator, hours + 40)["price"] *= 1.2


def date_a_row_in_the_future(operator: Operator, hours: int) -> None:
    go_on(operator, hours)
    rows = operator.log.rows
    # The feed of the customer begins before the newest row, so that nothing else is compared.
    rows[:] = [rows[-1] | {"created_at": "2031-01-01T00:00:00.000Z"}]


def freeze_the_log(operator: Operator, hours: int) -> None:
    operator.log.rows += operator.compute(hours)


def freeze_everything(operator: Operator, hours: int) -> None:
    operator.count += hours


def sign_a_frozen_feed(operator: Operator, hours: int) -> None:
    operator.count += hours
    operator.sign()


def give_one_id_two_directions(operator: Operator, hours: int) -> None:
    rows = operator.compute(hours)
    row = next(row for row in reversed(rows[:-1]) if row["tier"] == "universe")
    at = datetime.fromisoformat(row["created_at"]) + timedelta(seconds=1)
    back = {"from": row["transition"]["to"], "to": row["transition"]["from"]}
    twin = row | {"created_at": format_time(at), "transition": back, "direction": back["to"]}
    rows.insert(rows.index(row) + 1, twin)
    operator.publish(*rows)


def write_before_the_close(operator: Operator, hours: int) -> None:
    rows = operator.compute(hours)
    row = next(row for row in reversed(rows) if row["tier"] == "universe")
    close = int(row["id"].split(".")[4])
    row["id"] = row["id"].replace(str(close), str(close + 3600))
    operator.publish(*rows)


def withhold_a_row(operator: Operator, hours: int) -> None:
    rows = operator.compute(hours)
    place = next(n for n in range(len(rows) - 2, -1, -1) if rows[n]["tier"] == "universe")
    if hours > 1:
        del rows[place]
    operator.publish(*rows, *operator.compute(2))


def call_the_data_a_recording(operator: Operator, hours: int) -> None:
    go_on(operator, hours)
    operator.log.source = "recorded"


def show_another_history(operator: Operator, hours: int) -> None:
    go_on(operator, hours)
    operator.log.logged[11]["price"] = operator.log.rows[10]["price"] = 1.0
    operator.sign()


def state_another_start(operator: Operator, hours: int) -> None:
    go_on(operator, hours)
    operator.log.stated = {"source": "live", "started_at": format_time(FIRST - timedelta(days=9))}


def deny_the_start(operator: Operator, hours: int) -> None:
    go_on(operator, hours)
    operator.log.stated = None


def lose_the_times(operator: Operator, hours: int) -> None:
    operator.publish(*operator.compute(hours))
    operator.log.signed_at = 0
    operator.log.sign()


Cheat = Callable[[Operator, int], None]
# By cheat: the exit status of each customer, and what it reads (once: the first and only run).
CHEATS: dict[str, tuple[Cheat, dict[str, int], str]] = {
    "nothing": (
        go_on,
        {"hourly": 0, "monthly": 0, "once": 0},
        r"rows before .*computed at the first start\n(.*\n)*verified$|^verified$",
    ),
    "a row is deleted": (
        delete_an_old_row,
        {"hourly": 1, "monthly": 1, "once": 1},
        r"was deleted|has no row in the feed",
    ),
    "a price is changed": (
        change_an_old_price,
        {"hourly": 1, "monthly": 1, "once": 1},
        r"price was|differs from what leaf",
    ),
    "one row of 2031 hides the others": (
        date_a_row_in_the_future,
        {"hourly": 1, "monthly": 1, "once": 1},
        r"is dated in the future",
    ),
    "the log and the feed stop": (
        freeze_everything,
        {"hourly": 2, "monthly": 2, "once": 2},
        r"not verified: the signed checkpoint is",
    ),
    "the feed stops, the log signs on": (
        sign_a_frozen_feed,
        {"hourly": 2, "monthly": 2, "once": 2},
        r"not verified: the newest row is",
    ),
    "the feed goes on, the log stops": (
        freeze_the_log,
        {"hourly": 2, "monthly": 2, "once": 2},
        r"rows since .* are in no signed checkpoint yet",
    ),
    "two directions under one id": (
        give_one_id_two_directions,
        {"hourly": 1, "monthly": 1, "once": 1},
        r"has the id of a row of",
    ),
    "a row is written before its candle closes": (
        write_before_the_close,
        {"hourly": 1, "monthly": 1, "once": 1},
        r"was written before its candle closed",
    ),
    "a row is withheld": (
        withhold_a_row,
        {"hourly": 1, "monthly": 1, "once": 1},
        r"does not continue .*: a row between them is missing",
    ),
    "live data are called a recording": (
        call_the_data_a_recording,
        {"hourly": 1, "monthly": 1, "once": 1},
        r"the data are said to be recorded, but the first leaf says live",
    ),
    "history is passed off as published at the time": (
        state_another_start,
        {"hourly": 1, "monthly": 1, "once": 1},
        r"the first leaf is not the start that the service states",
    ),
    "the log denies its first start": (
        deny_the_start,
        {"hourly": 1, "monthly": 1, "once": 0},
        r"the log no longer states its first start|the log states no first start\n(.*\n)*verified$",
    ),
    "the log signs no time": (
        lose_the_times,
        {"hourly": 2, "monthly": 2, "once": 2},
        r"not verified: the checkpoint has no signed time",
    ),
    "the log is built again": (
        show_another_history,
        {"hourly": 1, "monthly": 1, "once": 0},
        r"its first 49 leaves have changed|^verified$",
    ),
}
# A pause of the service is as long as this, at least, where it must be seen.
PAUSE_H = {"the log and the feed stop": 4, "the feed stops, the log signs on": 4}


@pytest.mark.parametrize("kind", COMES_AFTER)
@pytest.mark.parametrize("name", CHEATS)
async def test_each_customer_sees_what_the_table_says(operator, customer, name, kind):
    cheat, statuses, text = CHEATS[name]
    hours = COMES_AFTER[kind]
    if hours is not None:
        assert (await customer.verify())[0] == 0
    hours = max(hours or HOUR_H, PAUSE_H.get(name, 0))
    cheat(operator, hours)
    status, printed = await customer.verify()
    assert (status, bool(re.search(text, printed, re.M))) == (statuses[kind], True), printed
    evidence = [*(customer.folder.glob("evidence-*.json"))]
    assert len(evidence) == (status == 1)
    for path in evidence:
        content = json.loads(path.read_text())
        assert content["findings"]
        assert operator.log.checkpoint in [one["note"] for one in content["checkpoints"]]


# The statuses of the two tests that follow.
SEEN_IN_BETWEEN = {"hourly": 1, "monthly": 0, "once": 0}
FURTHER = {
    "a row is dated back two hours": SEEN_IN_BETWEEN,
    "a row is rewritten before it is signed": SEEN_IN_BETWEEN,
}


@pytest.mark.clause("documents")
def test_the_table_of_the_documentation_has_these_statuses():
    page = (ROOT / "docs" / "proof.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (\d) \| (\d) \| (\d) \|$", page, re.M)
    table = {name: dict(zip(COMES_AFTER, map(int, rest), strict=True)) for name, *rest in rows}
    assert table == {name: statuses for name, (_, statuses, _) in CHEATS.items()} | FURTHER
    rows = re.findall(r"^\| ([^|]+) \| (\d) \| (\d) with `--\w+` \|$", page, re.M)
    assert rows == [(name, str(one[1]), str(one[2])) for name, one in MORE.items()]


# What only a customer sees who came in between, and what only a customer sees who has more.


@pytest.mark.parametrize(("comes_in_between", "expected"), [(True, 1), (False, 0)])
async def test_a_row_that_is_dated_back_is_seen_by_who_came_since(
    operator, customer, comes_in_between, expected
):
    await customer.verify()
    operator.extra = timedelta(hours=2, minutes=50)
    operator.sign()
    if comes_in_between:
        assert (await customer.verify())[0] == 0
    row = operator.compute(1)[0]
    operator.extra -= timedelta(hours=1)
    at = datetime.fromisoformat(row["created_at"]) - timedelta(minutes=40)
    close = int(row["id"].split(".")[4])
    moved = {"id": f"universe.ETH.enzo.1h.{close - 3600}.1", "ticker": "ETH"}
    operator.publish(row | moved | {"created_at": format_time(at)})
    status, printed = await customer.verify()
    assert status == expected, printed
    assert ("was published later than" in printed) is comes_in_between


@pytest.mark.parametrize(("comes_in_between", "expected"), [(True, 1), (False, 0)])
async def test_a_row_that_is_rewritten_before_it_is_signed_is_seen_by_who_read_it(
    operator, customer, comes_in_between, expected
):
    await customer.verify()
    rows = operator.compute(2)
    operator.log.rows += [dict(row) for row in rows]
    if comes_in_between:
        status, printed = await customer.verify()
        assert (status, "2 rows since" in printed) == (0, True)
    del operator.log.rows[-2:]
    rows[0]["price"] = 1.0
    operator.publish(*rows)
    status, printed = await customer.verify()
    assert status == expected, printed
    assert (f"{rows[0]['id']}: price was" in printed) is comes_in_between


async def test_rows_are_recorded_while_the_log_stops_and_must_be_signed_as_they_were(
    operator, customer
):
    await customer.verify()
    freeze_the_log(operator, 10 * 24)
    status, printed = await customer.verify()
    assert (status, "240 rows since" in printed) == (2, True)
    operator.log.rows[-100]["price"] = 1.0
    operator.log.logged[1:] = [dict(row) for row in operator.log.rows]
    operator.sign()
    status, printed = await customer.verify()
    assert (status, ": price was" in printed) == (1, True)


async def test_a_row_older_than_thirty_days_is_compared_too(operator, customer):
    go_on(operator, 32 * 24)
    since = (FIRST - timedelta(days=1)).isoformat()
    assert (await customer.verify(since=since))[0] == 0
    status, printed = await customer.verify()
    (compared,) = re.findall(r"compared (\d+) of the 816 rows of the record", printed)
    assert status == 0
    assert int(compared) > 30 * 24
    row = operator.log.rows.pop(60)
    status, printed = await customer.verify()
    assert (status, f"{row['id']} of {row['created_at']} was deleted" in printed) == (1, True)


async def test_customers_who_are_shown_one_history_compare_their_checkpoints(
    operator, customer, tmp_path
):
    (tmp_path / "other").write_text(operator.log.checkpoint)
    go_on(operator, HOUR_H)
    status, printed = await customer.verify(compare=tmp_path / "other")
    assert (status, "1 checkpoint of another customer" in printed) == (0, True)


def show_another_log(operator: Operator, path: Path) -> dict[str, object]:
    operator.log.logged[10]["price"] = 1.0
    operator.sign()
    path.write_text(operator.log.checkpoint)
    operator.log.logged[10]["price"] = operator.log.rows[9]["price"]
    operator.sign()
    return {"compare": path}


def turn_half_of_the_readings(operator: Operator, path: Path) -> dict[str, object]:
    own = [dict(row) for row in operator.log.rows]
    for row in own[::2]:
        row["transition"] = {"from": row["direction"], "to": "neutral"}
    path.write_text(json.dumps(own))
    return {"own": path}


def show_cosignatures_of_another_day(operator: Operator, path: Path) -> dict[str, object]:
    key = Ed25519PrivateKey.generate()
    body = operator.log.checkpoint.partition("\n\n")[0]
    operator.log.lines = cosign("w.example", key, f"{body}\n", 86_400)
    path.write_text(f"witness w {build_cosigner('w.example', key)}\nquorum w\n")
    return {"policy": path}


def withhold_old_rows(operator: Operator, path: Path) -> dict[str, object]:
    go_on(operator, 105 * 24)
    del operator.log.rows[: 14 * 24]
    return {"since": (FIRST - timedelta(days=1)).isoformat()}


# By cheat: the exit status without and with an option, and what a customer with it reads.
MORE: dict[str, tuple[Callable[[Operator, Path], dict[str, object]], int, int, str]] = {
    "customers are shown different logs": (show_another_log, 0, 1, "different histories"),
    "half of the readings are turned": (
        turn_half_of_the_readings,
        0,
        1,
        "your own bars: content equal",
    ),
    "cosignatures of another day are shown": (
        *(show_cosignatures_of_another_day, 0, 2),
        "cosigned within a day by: none",
    ),
    "rows older than 90 days are withheld": (withhold_old_rows, 0, 2, "are too many"),
}


@pytest.mark.parametrize("name", MORE)
async def test_a_customer_with_more_than_the_feed_sees_more(operator, customer, tmp_path, name):
    cheat, without, status, text = MORE[name]
    options = cheat(operator, tmp_path / "file")
    assert (await customer.verify())[0] == without
    found, printed = await customer.verify(**options)
    assert (found, text in printed) == (status, True), printed


async def test_the_record_proves_a_row_when_the_server_is_gone_and_the_key_has_ended(
    operator, customer, tmp_path, capsys
):
    go_on(operator, 600)
    await customer.verify()
    go_on(operator, 3)
    await customer.verify()
    vkey, rows = operator.log.vkey, [*operator.log.rows]
    operator.log.seed, operator.log.has_log = 2, False
    for number in (0, 255, 256, 511, 600, len(rows) - 1):
        status, proof = await customer.verify(prove=rows[number]["id"])
        assert status == 0
        (tmp_path / "proof").write_text(proof)
        (tmp_path / "row").write_text(json.dumps(rows[number]))
        status, printed = await customer.verify(
            proof=tmp_path / "proof", rows=tmp_path / "row", vkey=vkey
        )
        assert (status, f"is leaf {number + 1} of" in printed) == (0, True)
    with pytest.raises(OperatorError, match="no verified row with the id universe"):
        await customer.verify(prove="universe.BTC")
