"""The publisher with its cooldown: cases by hand, then the hour-by-hour model."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute.alerts.engines import Firing, Publisher
from schemas.vocabulary import Action, Timeframe
from tests.support.alert_model import FiredAction, ModelPublisher, find_nominal_time

pytestmark = pytest.mark.clause("indicators")

HOUR_S = 3600
MONDAY = 1_700_438_400  # 2023-11-20T00:00:00Z
DAY_S = 24 * HOUR_S

Said = tuple[float, str]  # hours from MONDAY, action


def fires(*said: Said, late_h: float = 0) -> list[Firing]:
    """Return firings on bars that close at some hours and are stepped then, or some hours late."""
    return [
        Firing(int(MONDAY + (hours + late_h) * HOUR_S), int(MONDAY + hours * HOUR_S), action, hours)  # type: ignore[arg-type]
        for hours, action in said
    ]


def in_hours(out: Sequence[Firing]) -> list[tuple[float, str, float]]:
    """Return (published at, action, fired at) in hours from MONDAY; the price holds the last."""
    return [
        ((one.hour - MONDAY) / HOUR_S, one.action, (one.close_time - MONDAY) / HOUR_S)
        for one in out
    ]


def publish(
    *said: Said, until: float, timeframe: Timeframe = "4h"
) -> list[tuple[float, str, float]]:
    return in_hours(Publisher(timeframe).run(fires(*said), int(MONDAY + until * HOUR_S)))


@pytest.mark.clause("8.41")
def test_the_first_of_each_action_goes_out_at_once():
    assert publish((0, "LONG"), (4, "CLOSE"), (8, "SHORT"), until=8) == [
        (0, "LONG", 0),
        (4, "CLOSE", 4),
        (8, "SHORT", 8),
    ]


@pytest.mark.clause("3.3.3", "3.3.4", "3.3.6", "8.43")
def test_the_same_action_goes_out_once_per_eighty_hours():
    said = [(0, "LONG"), (80, "LONG")]
    assert publish(*said, until=90) == [(0, "LONG", 0), (80, "LONG", 80)]
    early = [(0, "LONG"), (76, "LONG")]
    assert publish(*early, until=79) == [(0, "LONG", 0)]
    assert publish(*early, until=80) == [(0, "LONG", 0), (80, "LONG", 76)]


@pytest.mark.clause("2.1.17")
def test_a_held_alert_is_replaced_by_a_newer_one_of_its_action_and_keeps_its_own_price():
    publisher = Publisher("4h")
    out = publisher.run(fires((0, "LONG"), (20, "LONG"), (40, "LONG")), MONDAY + 80 * HOUR_S)
    assert in_hours(out)[1:] == [(80, "LONG", 40)]
    assert out[-1].price == 40


@pytest.mark.clause("3.3.7")
def test_publishing_one_action_drops_all_others_that_are_held():
    said = [(0, "LONG"), (4, "CLOSE"), (8, "LONG"), (12, "CLOSE"), (16, "SHORT")]
    assert publish(*said, until=400) == [(0, "LONG", 0), (4, "CLOSE", 4), (16, "SHORT", 16)]


@pytest.mark.clause("3.3.7")
def test_a_held_alert_going_out_drops_the_others_too():
    said = [(0, "LONG"), (4, "CLOSE"), (8, "LONG"), (12, "CLOSE")]
    assert publish(*said, until=400) == [(0, "LONG", 0), (4, "CLOSE", 4), (80, "LONG", 8)]


@pytest.mark.clause("3.3.8")
def test_a_close_goes_out_although_its_entry_was_held_and_dropped():
    said = [(0, "LONG"), (4, "SHORT"), (8, "LONG"), (12, "CLOSE")]
    assert publish(*said, until=400) == [(0, "LONG", 0), (4, "SHORT", 4), (12, "CLOSE", 12)]


@pytest.mark.clause("3.3.9")
def test_an_entry_may_go_out_long_after_it_fired_and_before_the_close_that_ends_it():
    said = [(0, "LONG"), (4, "CLOSE"), (8, "LONG"), (100, "CLOSE")]
    assert publish(*said, until=400)[2:] == [(80, "LONG", 8), (100, "CLOSE", 100)]


def test_if_two_alerts_fall_due_in_one_hour_the_one_of_the_older_bar_drops_the_other():
    # Stepped in one late run, both go out at one hour, so their windows end together.
    publisher = Publisher("4h")
    first = fires((0, "LONG"), (4, "CLOSE"), late_h=8)
    together = [
        first[0]._replace(hour=MONDAY + 8 * HOUR_S),
        first[1]._replace(hour=MONDAY + 8 * HOUR_S),
    ]
    held = fires((12, "CLOSE"), (16, "LONG"))
    out = publisher.run([*together, *held], MONDAY + 400 * HOUR_S)
    assert in_hours(out) == [(8, "LONG", 0), (8, "CLOSE", 4), (88, "CLOSE", 12)]


def test_a_new_firing_in_the_hour_of_a_held_one_comes_after_it():
    assert publish((0, "LONG"), (40, "LONG"), (80, "LONG"), until=160) == [
        (0, "LONG", 0),
        (80, "LONG", 40),
        (160, "LONG", 80),
    ]
    assert publish((0, "LONG"), (40, "LONG"), (80, "SHORT"), until=400) == [
        (0, "LONG", 0),
        (80, "LONG", 40),
        (80, "SHORT", 80),
    ]


@pytest.mark.clause("3.3.5", "8.44")
def test_twenty_daily_candles_are_twenty_days_although_a_market_closes():
    # Friday the 24th and its Fridays: weekends count, so 20 days end on a Thursday.
    friday = 4 * 24.0
    said = [(friday, "LONG"), (friday + 3 * 24, "LONG")]
    assert publish(*said, until=friday + 20 * 24 - 1, timeframe="1d") == [(friday, "LONG", friday)]
    due = friday + 20 * 24
    assert publish(*said, until=due, timeframe="1d")[1:] == [(due, "LONG", friday + 72)]


@pytest.mark.clause("3.3.6")
def test_a_held_alert_goes_out_at_an_hour_without_any_bar():
    publisher = Publisher("4h")
    publisher.run(fires((0, "LONG"), (76, "LONG")), MONDAY + 76 * HOUR_S)
    assert publisher.due_hour == MONDAY + 80 * HOUR_S
    assert in_hours(publisher.run([], MONDAY + 79 * HOUR_S)) == []
    assert in_hours(publisher.run([], MONDAY + 85 * HOUR_S)) == [(80, "LONG", 76)]
    assert publisher.due_hour is None


def test_a_restarted_publisher_keeps_the_cooldown_of_published_actions():
    publisher = Publisher("4h", {"LONG": find_nominal_time(MONDAY) + 7})
    out = publisher.run(fires((40, "LONG"), (44, "CLOSE")), MONDAY + 80 * HOUR_S)
    assert in_hours(out) == [(44, "CLOSE", 44)]


# How long after the first one an action comes again, and whether it is published at once.
EDGES: list[tuple[Timeframe, int, bool]] = [
    ("4h", 80 * 3_600_000 - 120_001, False),
    ("4h", 80 * 3_600_000 - 120_000, True),
    ("4h", 80 * 3_600_000, True),
    ("1d", 20 * 86_400_000 - 120_001, False),
    ("1d", 20 * 86_400_000 - 120_000, True),
    ("1d", 20 * 86_400_000, True),
]


@pytest.mark.clause("3.3.4", "3.3.5")
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


@pytest.mark.parametrize("timeframe", ["4h", "1d"])
def test_a_publisher_is_restored_from_its_bytes(timeframe: Timeframe):
    publisher = Publisher(timeframe)
    publisher.run(fires((0, "LONG"), (4, "SHORT"), (8, "LONG")), MONDAY + 8 * HOUR_S)
    again = Publisher(timeframe)
    again.unpack(publisher.pack())
    assert again.pack() == publisher.pack()
    assert again.due_hour == publisher.due_hour is not None
