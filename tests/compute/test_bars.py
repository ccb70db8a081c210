"""Validation of bars, closing times, longer bars and funding sums, all by hand."""

import math
import random
from datetime import UTC, datetime
from itertools import product

import numpy as np
import pytest

from compute.bars import (
    DAY_S,
    HOUR_S,
    NO_BARS,
    NO_FUNDING,
    Funding,
    RawBar,
    Series,
    find_settlement_fault,
    resample_bars,
    validate_bars,
)
from schemas.longer_bars import compute_close_time

pytestmark = pytest.mark.clause("sources")

H = HOUR_S
GOOD = RawBar(10 * H, 100.0, 110.0, 90.0, 105.0, 7.0)
NAN, INF = math.nan, math.inf
PRICES = ("open", "high", "low", "close")


@pytest.mark.parametrize(
    ("fields", "values", "reason"),
    [
        ((*PRICES, "volume"), (NAN, INF, -INF), "a number is NaN or infinite"),
        (PRICES, (0.0, -0.0, -1.0), "a price is not above 0"),
        (("high",), (89.0,), "high is below low"),
        (("close",), (110.5, 89.5), "close is outside low to high"),
        (("volume",), (-0.001,), "volume is negative"),
        (PRICES, (5e-324, 1e-320, 9e-16, 1.1e15, 1e308), "a price is outside 1e-15 to 1e+15"),
        (("volume",), (5e-324, 9e-16, 1.1e18, 1e308), "volume is outside 1e-15 to 1e+18"),
        (("open_time",), (-1, 253_402_300_800, 10**18, 10**40), "a time is out of range"),
    ],
)
def test_a_number_that_no_market_has_refuses_a_bar(
    fields: tuple[str, ...], values: tuple[float, ...], reason: str
):
    for field, value in product(fields, values):
        bar = GOOD._replace(**{field: value})
        assert validate_bars([bar], H) == ([], [(bar, reason)])


@pytest.mark.parametrize(
    ("settled_at", "rate", "fault"),
    [
        (0, 1.0, None),
        (8 * H, -1.0, None),
        (8 * H, 0.0, None),
        (8 * H, 1.0000001, "a rate is above 100 % of the position"),
        (8 * H, -1e308, "a rate is above 100 % of the position"),
        (8 * H, NAN, "a rate is NaN or infinite"),
        (8 * H, INF, "a rate is NaN or infinite"),
        (-1, 0.0001, "a time is out of range"),
        (10**18, 0.0001, "a time is out of range"),
    ],
)
def test_a_settlement_has_a_time_and_at_most_the_whole_position_as_rate(
    settled_at: int, rate: float, fault: str | None
):
    assert find_settlement_fault(settled_at, rate) == fault


def test_rates_within_their_bounds_always_have_a_sum():
    rows = [(hour * H, (-1.0) ** hour) for hour in range(48)] + [(48 * H, 1.0)]
    assert np.isfinite(Funding.from_pairs(rows).annualise(np.arange(1, 49) * H)).all()


@pytest.mark.parametrize(
    "bar",
    [
        GOOD,
        RawBar(10 * H, 1e-15, 1e15, 1e-15, 1e15, 1e18),
        RawBar(10 * H, 1e15, 1e15, 1e-15, 1e-15, 1e-15),
        GOOD._replace(open=120.0),
        GOOD._replace(open=80.0),
        GOOD._replace(volume=0.0),
        GOOD._replace(close=110.0),
        GOOD._replace(close=90.0),
        RawBar(10 * H, 5e-9, 5e-9, 5e-9, 5e-9, 0.0),
    ],
)
def test_an_open_outside_the_range_and_every_limit_that_is_still_allowed_are_accepted(bar: RawBar):
    assert validate_bars([bar], H) == ([bar], [])


@pytest.mark.parametrize(
    ("period_s", "bars", "refused_at", "reason"),
    [
        (H, [GOOD, GOOD._replace(close=106.0)], 1, "open time is repeated"),
        (
            H,
            [GOOD, GOOD._replace(open_time=11 * H - 1), GOOD._replace(open_time=11 * H)],
            1,
            "opens less than an hour after its predecessor",
        ),
        (
            H,
            [GOOD._replace(volume=NAN), GOOD._replace(open_time=10 * H + 1800)],
            0,
            "a number is NaN or infinite",
        ),
        (
            DAY_S,
            [GOOD._replace(open_time=DAY_S + H), GOOD._replace(open_time=DAY_S + 2 * H)],
            1,
            "closes together with its predecessor",
        ),
    ],
)
def test_a_bar_is_refused_by_the_accepted_one_before_it_and_displaces_no_other(
    period_s: int, bars: list[RawBar], refused_at: int, reason: str
):
    kept = [bar for place, bar in enumerate(bars) if place != refused_at]
    assert validate_bars(bars, period_s) == (kept, [(bars[refused_at], reason)])


def judge_one_by_one(
    rows: list[RawBar], period_s: int, after: int | None
) -> tuple[list[RawBar], list[tuple[RawBar, str]]]:
    """Validate bars one after another, each against the last accepted one."""
    accepted: list[RawBar] = []
    rejected: list[tuple[RawBar, str]] = []
    for row in sorted(rows, key=lambda row: row.open_time):
        reason = ""
        if row.close <= 0:
            reason = "a price is not above 0"
        elif row.high < row.close:
            reason = "close is outside low to high"
        elif after is not None and row.open_time <= after:
            reason = "open time is repeated"
        elif after is not None and period_s == H and row.open_time < after + H:
            reason = "opens less than an hour after its predecessor"
        elif after is not None and math.ceil(row.open_time / period_s) <= math.ceil(
            after / period_s
        ):
            reason = "closes together with its predecessor"
        if reason:
            rejected.append((row, reason))
        else:
            accepted.append(row)
            after = row.open_time
    return accepted, rejected


@pytest.mark.parametrize("period_s", [H, DAY_S, 1800])
@pytest.mark.parametrize("seed", range(20))
def test_bars_validated_together_are_judged_as_one_by_one(seed: int, period_s: int):
    draw = random.Random(seed)
    rows = [
        GOOD._replace(
            open_time=draw.randrange(40 * period_s)
            // draw.choice((1, 60, period_s))
            * draw.choice((1, 60)),
            close=draw.choice((105.0, 105.0, 105.0, 120.0, -1.0)),
        )
        for _ in range(60)
    ]
    after = draw.choice((None, 3 * period_s))
    assert validate_bars(rows, period_s, after) == judge_one_by_one(rows, period_s, after)


@pytest.mark.parametrize(
    ("opened", "period_s", "closed"),
    [
        (10 * H, H, 11 * H),
        (10 * H + 1800, H, 12 * H),
        (10 * H + 1, H, 12 * H),
        (11 * H - 1, H, 12 * H),
        (DAY_S, DAY_S, 2 * DAY_S),
        (DAY_S + 14 * H + 1800, DAY_S, 3 * DAY_S),
    ],
)
def test_a_bar_that_ends_off_its_boundary_closes_at_the_next(
    opened: int, period_s: int, closed: int
):
    assert compute_close_time(np.array([opened]), period_s).tolist() == [closed]


def rows_of(series: Series) -> list[tuple[float, ...]]:
    columns = (
        *(series.open_time, series.close_time, series.open, series.high, series.low),
        *(series.close, series.volume),
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


HOURLY = Series.from_rows(
    [
        RawBar(0 * H, 10.0, 12.0, 9.0, 11.0, 1.0),  # closes 01:00
        RawBar(3 * H, 11.0, 15.0, 10.0, 14.0, 2.0),  # closes 04:00: the last of its bucket
        RawBar(4 * H, 14.0, 14.0, 8.0, 8.0, 4.0),  # closes 05:00: the first of the next
        RawBar(6 * H + 1800, 8.0, 9.0, 7.0, 8.5, 8.0),  # closes 08:00, ends 07:30
        RawBar(14 * H + 1800, 8.5, 20.0, 8.0, 19.0, 16.0),  # ends 15:30: in the bucket to 16:00
        RawBar(15 * H + 1800, 19.0, 19.5, 6.0, 6.5, 32.0),  # ends 16:30: in the bucket to 20:00
        RawBar(24 * H, 6.5, 6.6, 6.4, 6.5, 64.0),  # closes 01:00 of the next day
    ],
    H,
)


@pytest.mark.parametrize(
    ("period_s", "rows"),
    [
        (
            4 * H,
            [
                (0 * H, 4 * H, 10.0, 15.0, 9.0, 14.0, 3.0),
                (4 * H, 8 * H, 14.0, 14.0, 7.0, 8.5, 12.0),
                (12 * H, 16 * H, 8.5, 20.0, 8.0, 19.0, 16.0),
                (16 * H, 20 * H, 19.0, 19.5, 6.0, 6.5, 32.0),
                (24 * H, 28 * H, 6.5, 6.6, 6.4, 6.5, 64.0),
            ],
        ),
        (
            DAY_S,
            [
                (0, DAY_S, 10.0, 20.0, 6.0, 6.5, 63.0),
                (DAY_S, 2 * DAY_S, 6.5, 6.6, 6.4, 6.5, 64.0),
            ],
        ),
    ],
)
def test_longer_bars_hold_the_hours_that_close_after_their_start_and_up_to_their_end(
    period_s: int, rows: list[tuple[float, ...]]
):
    assert rows_of(resample_bars(HOURLY, period_s)) == rows
    assert len(resample_bars(NO_BARS, period_s)) == 0
    last = Series.from_rows([RawBar(23 * H, 1.0, 1.0, 1.0, 1.0, 0.0)], H)
    assert resample_bars(last, period_s).close_time.tolist() == [DAY_S]


SUNDAY = int(datetime(2026, 11, 22, tzinfo=UTC).timestamp())


@pytest.mark.parametrize("opens_at", [22, 23])  # in summer and in winter
def test_sundays_hours_belong_to_mondays_daily_bar(opens_at: int):
    friday = RawBar(SUNDAY - DAY_S - 3 * H, 7.0, 7.0, 7.0, 7.0, 1.0)
    evening = [
        RawBar(SUNDAY + hour * H, 10.0, 12.0, 9.0, 11.0, 2.0) for hour in range(opens_at, 24)
    ]
    monday = RawBar(SUNDAY + DAY_S, 11.0, 11.5, 8.0, 8.5, 4.0)
    tuesday = RawBar(SUNDAY + 2 * DAY_S, 8.5, 8.5, 8.5, 8.5, 8.0)
    hourly = Series.from_rows([friday, *evening, monday, tuesday], H)
    assert rows_of(resample_bars(hourly, DAY_S, joins_sundays=True)) == [
        (SUNDAY - 2 * DAY_S, SUNDAY - DAY_S, 7.0, 7.0, 7.0, 7.0, 1.0),
        (SUNDAY + DAY_S, SUNDAY + 2 * DAY_S, 10.0, 12.0, 8.0, 8.5, 4.0 + 2.0 * len(evening)),
        (SUNDAY + 2 * DAY_S, SUNDAY + 3 * DAY_S, 8.5, 8.5, 8.5, 8.5, 8.0),
    ]
    assert resample_bars(hourly, 4 * H, joins_sundays=True).close_time.tolist()[1] == SUNDAY + DAY_S


SETTLED = Funding.from_pairs(
    [(0, 0.001), (8 * H, 0.002), (16 * H + 420, 0.004), (24 * H, 0.008), (60 * H, -0.5)]
)


@pytest.mark.parametrize(
    ("close", "annualised"),
    [
        (0, 365 * 0.001),
        (8 * H, 365 * 0.003),
        (16 * H, 365 * 0.003),  # the third settles seven minutes later
        (17 * H, 365 * 0.007),
        (24 * H, 365 * 0.014),  # exactly 24 h ago no longer counts, exactly now does
        (32 * H, 365 * 0.012),
        (40 * H, 365 * 0.012),
        (41 * H, 365 * 0.008),
        (60 * H, 365 * -0.5),
        *((close, NAN) for close in (48 * H, 59 * H, 84 * H)),  # nothing settled within the day
    ],
)
def test_funding_is_365_times_the_sum_of_the_rates_of_the_day_up_to_the_close(
    close: int, annualised: float
):
    expected = pytest.approx([annualised], rel=1e-12, nan_ok=True)
    assert SETTLED.annualise(np.array([close])).tolist() == expected
    # An asset without a perpetual has none.
    assert np.isnan(NO_FUNDING.annualise(np.array([close]))).all()


def test_a_funding_sum_does_not_depend_on_how_its_settlements_were_split():
    rows = [(hour * H, 0.1 + hour * 1e-17) for hour in range(48)]
    closes = np.arange(30, 48) * H
    cut = (
        Funding.from_pairs(rows[:40])
        .concatenate(Funding.from_pairs(rows[40:]))
        .select_between(6 * H, 47 * H)
    )
    assert cut.annualise(closes).tolist() == Funding.from_pairs(rows).annualise(closes).tolist()
