"""Alert engines by hand calculation, and when their publisher lets actions go out."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from compute.alerts.rules import ACTIONS, AlertEngine, BarWithReading, Firing, Publisher
from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.batch_assembler import keep_cooldowns
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import NO_READING
from compute.schedule import to_market_ms
from compute.stepper import Cell
from schemas.vocabulary import Action, Timeframe
from store.market_rows import AlertRow
from tests.doubles.scripted_source import ALTERNATING, march_s
from tests.support import alert_model as alert_model
from tests.support.alert_model import FiredAction, ModelBar, ModelPublisher, find_nominal_time
from tests.support.bar_sets import step_bar
from tests.support.store_homes import StoreHome, open_and_close
from tests.support.tampering import Market, open_unguarded

QUIET = [(100.0, None)] * 20  # bars of range 2 without a reading: the ATR is 2, a stop is 6 away
Read = tuple[float, int | None]


def stepped(bars: Sequence[tuple[float, float, float, int | None]]) -> list[str]:
    """Step one engine on (high, low, close, reading) bars; return its actions, `-` for none."""
    engine, actions = AlertEngine(), []
    carry = engine.start(1)
    for high, low, close, reading in bars:
        bar = BarWithReading(
            *(np.array([value]) for value in (high, low, close)),
            np.array([NO_READING if reading is None else reading], dtype=np.int8),
        )
        carry, action = step_bar(engine, carry, bar)
        actions.append(ACTIONS.get(int(action[0]), "-"))
    return actions


OTHER = {"LONG": "SHORT", "SHORT": "LONG", "CLOSE": "CLOSE", "-": "-"}
RULES: dict[str, tuple[list[Read], list[str]]] = {
    "the first reading may fire": ([(100, 1)], ["LONG"]),
    "a neutral first reading fires nothing": ([(100, 0), (100, 1)], ["-", "LONG"]),
    "a side that stays fires once": ([(100, 1), (100, 1), (101, 1)], ["LONG", "-", "-"]),
    "a bar without a reading is no step": ([(100, 1), (100, None)], ["LONG", "-"]),
    "neutral ends a position": ([(100, 1), (100, 0), (100, 0)], ["LONG", "CLOSE", "-"]),
    "neutral bars no side": ([(100, 1), (100, 0), (100, 1)], ["LONG", "CLOSE", "LONG"]),
    "a direct turn publishes only the new side": ([(100, 1), (100, -1)], ["LONG", "SHORT"]),
    "the entry bar's close counts: 6 below it is not beyond, 6.5 is": (
        [(100, 1), (99, 1), (97, 1), (94.5, 1), (93.4, 1)],
        ["LONG", "-", "-", "-", "CLOSE"],
    ),
    "a stop bars the side that is still read": (
        [(100, 1), (92, 1), (110, 1)],
        ["LONG", "CLOSE", "-"],
    ),
    "a barred side is freed by a neutral bar": (
        [(100, 1), (92, 1), (92, 0), (92, 1)],
        ["LONG", "CLOSE", "-", "LONG"],
    ),
    "a barred side is freed by the other side": (
        [(100, 1), (92, 1), (92, -1), (92, 1)],
        ["LONG", "CLOSE", "SHORT", "LONG"],
    ),
    "a bar without a reading frees nothing": (
        [(100, 1), (92, 1), (92, None), (92, 1)],
        ["LONG", "CLOSE", "-", "-"],
    ),
    "a stop with another reading bars nothing": (
        [(100, 1), (92, 0), (92, 1)],
        ["LONG", "CLOSE", "LONG"],
    ),
    "a turn on the bar of a stop waits for the next": (
        [(100, 1), (92, -1), (92, -1)],
        ["LONG", "CLOSE", "SHORT"],
    ),
    # Three ranges of 3 lift the ATR to 2.199, so the stop is 106 - 6.598 = 99.402.
    "the highest close since entry moves the stop": (
        [(100, 1), (102, 1), (104, 1), (106, 1), (99.5, 1), (99.4, 1)],
        ["LONG", "-", "-", "-", "-", "CLOSE"],
    ),
    "a new entry forgets the old extreme": (
        [(100, 1), (103, 1), (106, 1), (105, 0), (101, 1), (98, 1)],
        ["LONG", "-", "-", "CLOSE", "LONG", "-"],
    ),
}


@pytest.mark.clause("indicators")
@pytest.mark.clause("2.1.16", "3.3.1", "3.3.11")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("side", ["long", "short"])
def test_an_engine_keeps_the_rule(rule: str, side: str):
    reads, expected = RULES[rule]
    if side == "short":
        reads = [(200 - close, None if reading is None else -reading) for close, reading in reads]
        expected = [OTHER[action] for action in expected]
    # After a quiet start, all bars of range 2.
    rows = [(close + 1, close - 1, close, reading) for close, reading in [*QUIET, *reads]]
    assert stepped(rows) == ["-"] * len(QUIET) + expected


FLAT: list[tuple[float, float, float, int | None]] = [(101.0, 99.0, 100.0, None)] * 20


@pytest.mark.clause("indicators")
def test_extreme_and_stop_include_the_bar_before_its_close_is_compared():
    # A range of 16 lifts the ATR from 2 to 3, so this bar's stop is 91, no longer 94: 92 stays.
    # But a stop never moves back: the entry's 94 stays, and 92 is beyond it.
    entered = [*FLAT, (101.0, 99.0, 100.0, 1)]
    assert stepped([*entered, (108.0, 92.0, 92.0, 1)])[-1] == "CLOSE"
    assert stepped([*entered, (110.0, 94.0, 94.0, 1)])[-1] == "-"
    # A new highest close on a bar of its own range: the stop is 110 - 3 x 2.64, not 100 - 6.
    rising = [*entered, (110.0, 109.0, 110.0, 1)]
    atr = 2 + (10 - 2) / 14
    close = 110 - 3 * atr + 0.1
    assert stepped([*rising, (110.0, close, close, 1)])[-1] == "-"
    assert stepped([*rising, (110.0, close - 0.2, close - 0.2, 1)])[-1] == "CLOSE"


@pytest.mark.clause("indicators")
def test_a_narrower_range_raises_the_stop_without_a_new_extreme():
    quiet = [(100.0, 100.0, 100.0, 1)] * 40  # the ATR decays to 2 x (13/14)^40 = 0.103
    rows = [*FLAT, (101.0, 99.0, 100.0, 1), *quiet]
    assert stepped([*rows, (99.5, 99.5, 99.5, 1)])[-1] == "CLOSE"
    assert stepped([*rows[:25], (99.5, 99.5, 99.5, 1)])[-1] == "-"


@pytest.mark.clause("indicators")
def test_the_range_runs_on_every_bar_and_the_engine_on_those_with_a_reading():
    wide = [(110.0, 90.0, 100.0, None)] * 60
    entered = [*FLAT, *wide, (101.0, 99.0, 100.0, 1)]
    assert stepped([*entered, (100.0, 85.0, 85.0, 1)])[-1] == "-"
    assert stepped([*FLAT, (101.0, 99.0, 100.0, 1), (100.0, 85.0, 85.0, 1)])[-1] == "CLOSE"


MOVES = st.lists(
    st.tuples(
        st.integers(-60, 60), st.integers(0, 30), st.integers(0, 30), st.sampled_from([-1, 0, 1])
    ),
    min_size=1,
    max_size=60,
)


def model_bars(moves: Sequence[tuple[int, int, int, int]], warmup: int) -> list[ModelBar]:
    """Return daily bars that walk in tenths; the first ones have no reading."""
    price, bars = 1000, []
    for at, (move, above, below, reading) in enumerate([(0, 5, 5, 0)] * warmup + list(moves)):
        before, price = price, max(price + move, 100)
        high, low = max(before, price) + above, min(before, price) - below
        read = None if at < warmup else reading
        end = (at + 1) * 86_400
        bars.append(ModelBar(end, end, high / 10, low / 10, price / 10, read))
    return bars


@pytest.mark.clause("indicators")
@pytest.mark.clause("3.3.11")
@settings(deadline=None)
@given(moves=MOVES, holding=st.integers(1, 6))
def test_an_engine_fires_as_the_slow_model_does(
    moves: list[tuple[int, int, int, int]], holding: int
):
    sticky = [(*move[:3], moves[at // holding * holding][3]) for at, move in enumerate(moves)]
    bars = model_bars(sticky, warmup=20)
    actions = stepped([(bar.high, bar.low, bar.close, bar.reading) for bar in bars])
    found = [
        (bar.close_time, action, bar.close)
        for bar, action in zip(bars, actions, strict=True)
        if action != "-"
    ]
    assert found == alert_model.run_engine(bars)


MONDAY = 1_700_438_400  # 2023-11-20T00:00:00Z

Said = tuple[float, str]  # hours from MONDAY, action


def fires(*said: Said, late_h: float = 0) -> list[Firing]:
    """Return firings on bars that close at some hours and are stepped then, or some hours late."""
    return [
        Firing(int(MONDAY + (hours + late_h) * HOUR_S), int(MONDAY + hours * HOUR_S), action, hours)
        for hours, action in said
    ]


def in_hours(out: Sequence[Firing]) -> list[tuple[float, str, float]]:
    """Return (published at, action, fired at) in hours from MONDAY; the price holds the last."""
    return [
        ((one.hour - MONDAY) / HOUR_S, one.action, (one.close_time - MONDAY) / HOUR_S)
        for one in out
    ]


LONG_THEN_CLOSE = [(0, "LONG"), (4, "CLOSE")]
# What an engine fires, up to when, and what goes out: when, what, and when it fired.
PUBLISHED = {
    "the first of each action goes out at once": (
        [*LONG_THEN_CLOSE, (8, "SHORT")],
        8,
        [(0, "LONG", 0), (4, "CLOSE", 4), (8, "SHORT", 8)],
    ),
    "the same action goes out after 80 hours": (
        [(0, "LONG"), (80, "LONG")],
        90,
        [(0, "LONG", 0), (80, "LONG", 80)],
    ),
    "one that fires sooner is held": ([(0, "LONG"), (76, "LONG")], 79, [(0, "LONG", 0)]),
    "until its window ends": (
        [(0, "LONG"), (76, "LONG")],
        80,
        [(0, "LONG", 0), (80, "LONG", 76)],
    ),
    "a newer one of its action replaces it and keeps its own price": (
        [(0, "LONG"), (20, "LONG"), (40, "LONG")],
        80,
        [(0, "LONG", 0), (80, "LONG", 40)],
    ),
    "publishing one action drops all others that are held": (
        [*LONG_THEN_CLOSE, (8, "LONG"), (12, "CLOSE"), (16, "SHORT")],
        400,
        [(0, "LONG", 0), (4, "CLOSE", 4), (16, "SHORT", 16)],
    ),
    "a held one going out drops the others too": (
        [*LONG_THEN_CLOSE, (8, "LONG"), (12, "CLOSE")],
        400,
        [(0, "LONG", 0), (4, "CLOSE", 4), (80, "LONG", 8)],
    ),
    "a close goes out although its entry was held and dropped": (
        [(0, "LONG"), (4, "SHORT"), (8, "LONG"), (12, "CLOSE")],
        400,
        [(0, "LONG", 0), (4, "SHORT", 4), (12, "CLOSE", 12)],
    ),
    "an entry may go out long after it fired and before the close that ends it": (
        [*LONG_THEN_CLOSE, (8, "LONG"), (100, "CLOSE")],
        400,
        [(0, "LONG", 0), (4, "CLOSE", 4), (80, "LONG", 8), (100, "CLOSE", 100)],
    ),
    "a new one in the hour of a held one is held after it": (
        [(0, "LONG"), (40, "LONG"), (80, "LONG")],
        160,
        [(0, "LONG", 0), (80, "LONG", 40), (160, "LONG", 80)],
    ),
    "a new action in the hour of a held one comes after it": (
        [(0, "LONG"), (40, "LONG"), (80, "SHORT")],
        400,
        [(0, "LONG", 0), (80, "LONG", 40), (80, "SHORT", 80)],
    ),
}


@pytest.mark.clause("indicators")
@pytest.mark.clause("2.1.17", "3.3.3", "3.3.4", "3.3.6", "3.3.7", "3.3.8", "3.3.9", "8.41", "8.43")
@pytest.mark.parametrize("rule", PUBLISHED)
def test_an_action_goes_out_at_most_once_in_twenty_candles(rule: str):
    said, until, published = PUBLISHED[rule]
    out = Publisher("4h").run(fires(*said), MONDAY + until * HOUR_S)
    assert in_hours(out) == published
    assert [one.price for one in out] == [fired for _, _, fired in published]


@pytest.mark.clause("indicators")
def test_if_two_alerts_fall_due_in_one_hour_the_one_of_the_older_bar_drops_the_other():
    # Stepped in one late run, both go out at one hour, so their windows end together.
    publisher = Publisher("4h")
    first = fires((0, "LONG"), (4, "CLOSE"), late_h=8)
    together = [
        first[0]._replace(hour=MONDAY + 8 * HOUR_S),
        first[1]._replace(hour=MONDAY + 8 * HOUR_S),
    ]
    out = publisher.run([*together, *fires((12, "CLOSE"), (16, "LONG"))], MONDAY + 400 * HOUR_S)
    assert in_hours(out) == [(8, "LONG", 0), (8, "CLOSE", 4), (88, "CLOSE", 12)]


# How long after the first one an action comes again, and whether it is published at once.
EDGES: list[tuple[Timeframe, int, bool]] = [
    ("4h", 80 * 3_600_000 - 120_001, False),
    ("4h", 80 * 3_600_000 - 120_000, True),
    ("4h", 80 * 3_600_000, True),
    ("1d", 20 * 86_400_000 - 120_001, False),
    ("1d", 20 * 86_400_000 - 120_000, True),
    ("1d", 20 * 86_400_000, True),
]


@pytest.mark.clause("indicators")
@pytest.mark.clause("3.3.4", "3.3.5", "8.44")
@pytest.mark.parametrize(("timeframe", "after_ms", "goes_out"), EDGES)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_times_at_which_rows_are_written_decide_to_the_millisecond(
    timeframe: Timeframe, after_ms: int, goes_out: bool, is_restarted: bool
):
    first_at = find_nominal_time(MONDAY) + 12_345
    publisher = Publisher(timeframe)
    if is_restarted:
        publisher = Publisher(timeframe, {"LONG": first_at})
    else:
        publisher.run(fires((0, "LONG")), MONDAY, first_at)
    again = fires((after_ms // 3_600_000, "LONG"))
    out = publisher.run(again, again[0].hour, first_at + after_ms)
    assert out == (again if goes_out else [])
    # A held alert goes out in the next run, with the price at which it fired.
    later = publisher.run([], again[0].hour + HOUR_S, first_at + after_ms + 3_600_000)
    assert [(one.action, one.price) for one in out + later] == [("LONG", again[0].price)]


@pytest.mark.clause("indicators")
@pytest.mark.clause("3.3.3")
def test_a_catch_up_publishes_an_action_once_although_its_hours_are_windows_apart():
    publisher, at = Publisher("4h"), find_nominal_time(MONDAY + 500 * HOUR_S)
    caught_up = fires((0, "LONG"), (80, "LONG"), (160, "CLOSE"), (240, "LONG"))
    out = publisher.run(caught_up, MONDAY + 500 * HOUR_S, at)
    assert in_hours(out) == [(0, "LONG", 0), (160, "CLOSE", 160)]
    for hours, held in ((579, []), (580, [(580, "LONG", 240)])):
        run = MONDAY + hours * HOUR_S
        assert in_hours(publisher.run([], run, find_nominal_time(run))) == held


ACTION: st.SearchStrategy[Action] = st.sampled_from(["LONG", "SHORT", "CLOSE"])
BARS = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 5), ACTION), min_size=1, max_size=40
)  # candles since the one before, candles it comes late, action that fires


def schedule(timeframe: Timeframe, bars: Sequence[tuple[int, int, Action]]) -> list[Firing]:
    """Return firings whose runs never go back; several may fall into one run."""
    candle = {"4h": 4, "1d": 24}[timeframe] * HOUR_S
    close, hour, firings = MONDAY, MONDAY, []
    for gap, late, action in bars:
        close += gap * candle
        hour = max(hour, close + late * candle)
        firings.append(Firing(hour, close, action, float(len(firings))))
    return firings


@pytest.mark.clause("indicators")
@settings(deadline=None)
@given(
    timeframe=st.sampled_from(["4h", "1d"]),
    bars=BARS,
    cuts=st.lists(st.integers(0, 600), max_size=5),
    repeats=st.booleans(),
)
def test_batches_of_any_length_publish_the_same_as_hour_by_hour(
    timeframe: Timeframe, bars: list[tuple[int, int, Action]], cuts: list[int], repeats: bool
):
    firings = schedule(timeframe, bars)
    end = firings[-1].hour + 30 * 24 * HOUR_S
    model = ModelPublisher(timeframe)
    for hour in range(MONDAY, end + 1, HOUR_S):
        new = [FiredAction(f.close_time, f.action, f.price) for f in firings if f.hour == hour]
        model.run_hour(hour, new, find_nominal_time(hour))
    publisher, found, done = Publisher(timeframe), [], MONDAY - HOUR_S
    step = 4 * HOUR_S
    for until in sorted({min(MONDAY + cut * step, end) for cut in cuts} | {end}):
        due = [firing for firing in firings if done < firing.hour <= until]
        late = [firing for firing in due if repeats and firing.hour == until]
        found += publisher.run([firing for firing in due if firing not in late], until)
        found += publisher.run(late, until)  # a retry for late assets at the same hour
        resumed = Publisher(timeframe)
        resumed.unpack(publisher.pack())
        publisher, done = resumed, until
    assert [tuple(out) for out in model.published] == [
        (f.hour, f.close_time, f.action, f.price) for f in found
    ]


@pytest.mark.clause("indicators")
@settings(deadline=None)
@given(
    timeframe=st.sampled_from(["4h", "1d"]),
    bars=BARS,
    delays=st.lists(st.integers(0, 200_000), min_size=1, max_size=9),
)
def test_runs_that_are_written_at_any_time_in_their_hour_publish_what_the_model_does(
    timeframe: Timeframe, bars: list[tuple[int, int, Action]], delays: list[int]
):
    firings = schedule(timeframe, bars)
    end = firings[-1].hour + 22 * 24 * HOUR_S
    model, publisher, found = ModelPublisher(timeframe), Publisher(timeframe), []
    for hour in range(MONDAY, end + 1, HOUR_S):
        new = [f for f in firings if f.hour == hour]
        written_at = find_nominal_time(hour) + delays[hour // HOUR_S % len(delays)]
        model.run_hour(
            hour, [FiredAction(f.close_time, f.action, f.price) for f in new], written_at
        )
        found += publisher.run(new, hour, written_at)
    assert [tuple(out) for out in model.published] == [
        (f.hour, f.close_time, f.action, f.price) for f in found
    ]


WINDOWS_MS = {"4h": 80 * 3_600_000, "1d": 20 * 86_400_000}
STARTS = march_s("06:00", day=5)
STOPS, RESUMES = STARTS + 5 * DAY_S, STARTS + 14 * DAY_S
ENDS = STARTS + 35 * DAY_S


def list_run_hours() -> Iterator[int]:
    """Yield the hours at which the service runs; it is down for nine days in between."""
    yield from range(STARTS, STOPS, HOUR_S)
    yield from range(RESUMES, RESUMES + 5 * DAY_S, HOUR_S)
    yield from range(RESUMES + 5 * DAY_S, ENDS, 6 * HOUR_S)


async def run_service(home: StoreHome) -> list[AlertRow]:
    """Run up to ENDS, each run up to 90 s after its nominal time; return the alerts."""
    source = Market()
    source.begins_at = STARTS - 25 * DAY_S
    async with open_and_close(home.open_market()) as store:
        pipeline = None
        for hour in list_run_hours():
            source.time.now = to_market_ms(hour) + hour // HOUR_S * 7919 % 90_000
            if pipeline is None or hour == RESUMES:
                pipeline = await HourlyPipeline.open(
                    store, source, source.universe, ALTERNATING, source.time
                )
            await pipeline.run_until(hour)
        return [row async for row in store.alerts()]


async def list_findings(home: StoreHome) -> list[str]:
    async with open_and_close(home.open_market()) as store:
        return (await audit_market(store, Market().universe, ALTERNATING)).findings


def list_gaps(alerts: list[AlertRow]) -> list[tuple[AlertRow, int]]:
    """Return each alert that repeats an action, with the time since the one before, in windows."""
    last: dict[tuple[str, ...], int] = {}
    gaps = []
    for row in alerts:
        key = row.ticker, row.indicator, row.timeframe, row.action
        if key in last:
            gaps.append((row, row.created_at - last[key] - WINDOWS_MS[row.timeframe]))
        last[key] = row.created_at
    return gaps


@pytest.mark.clause("indicators", "3.3.3")
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_no_two_rows_of_an_action_are_closer_than_their_window_or_an_audit_names_them(
    home: StoreHome,
):
    gaps = list_gaps(await run_service(home))
    assert [gap for gap in gaps if gap[1] < 0] == []
    phases = [row.created_at // 1000 for row, _ in gaps]
    counts = [
        sum(first <= at < end for at in phases)
        for first, end in ((0, STARTS), (STARTS, STOPS), (RESUMES, ENDS))
    ]
    assert min(counts) >= 4, counts
    assert {row.timeframe for row, _ in gaps} == {"4h", "1d"}
    # Held alerts go out in the first run after their window.
    assert sum(gap <= 3_700_000 for _, gap in gaps) > len(gaps) // 2
    assert await list_findings(home) == []
    row, gap = next(found for found in gaps if found[0].created_at > STARTS * 1000)
    early = row.created_at - gap - 1
    async with open_unguarded(home, "alerts") as session:
        sql = "UPDATE alerts SET created_at = ? WHERE created_at = ?"
        assert await session.write(sql, early, row.created_at)
    expected = f"created_at is {early}, but the bars give {row.created_at}"
    assert await list_findings(home) == [f"alerts: {row.id}: {expected}"]


@pytest.mark.clause("indicators", "3.3.3")
def test_rows_move_until_a_cooldown_ends_and_those_after_them_too():
    cell, window = Cell("BTC", "4h", "alerts.enzo"), WINDOWS_MS["4h"]
    times = np.array([0, 1, 2, 10]) + window
    alerts: list[tuple[int, Cell, Action]] = [(0, cell, "LONG"), (1, cell, "CLOSE")]
    published: dict[Cell, dict[Action, int]] = {cell: {"LONG": 0, "CLOSE": 6}}
    keep_cooldowns(times, alerts, published)
    assert (times - window).tolist() == [0, 6, 7, 10]
    assert published == {cell: {"LONG": window, "CLOSE": window + 6}}
