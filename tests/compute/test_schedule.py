"""Whose clock is wrong, by hand: cases of venues that confirm, contradict or disagree."""

import pytest

from compute.schedule import compute_lag_s, describe_clock, judge_clocks

pytestmark = pytest.mark.clause("live")

CONFIRMED = [
    ([0], []),
    ([30_000], []),
    ([-30_000], []),
    ([0, 600_000], ["b"]),
    ([0, -600_000], ["b"]),
    ([0, 0, 600_000], ["c"]),
    ([0, 29_000, 600_000, 600_000], ["c", "d"]),
    ([0, 0, -1_790_000_000_000], ["c"]),
    ([29_000, 29_000, 31_000, 31_000], ["c", "d"]),
]
MACHINE_WRONG = [
    ([45_000, 45_000], "45 s ahead of"),
    ([-45_000, -45_000], "45 s behind"),
    ([45_000, 46_000, 0], "46 s ahead of"),
    ([600_000, 610_000, 620_000, 0, 0], "610 s ahead of"),
    ([600_000, 600_000, 600_000, -900_000, 0], "600 s ahead of"),
    ([28_000, 33_000, 36_000, 40_000], "36 s ahead of"),
]
UNDECIDED = [
    [45_000],
    [-600_000],
    [600_000, -600_000],
    [600_000, 631_000],
    [0, 600_000, -600_000],
    [0, 600_000, 700_000, 800_000],
    [600_000, 600_000, -600_000, -600_000],
]


def name_venues(skews_ms: list[int]) -> dict[str, float]:
    return dict(zip("abcde", map(float, skews_ms), strict=False))


@pytest.mark.parametrize(("skews_ms", "wrong"), CONFIRMED)
def test_if_half_of_the_venues_confirm_this_machine_the_others_are_wrong(
    skews_ms: list[int], wrong: list[str]
) -> None:
    verdict = judge_clocks(name_venues(skews_ms))
    assert verdict.problem is None
    assert sorted(verdict.wrong_skews_ms) == wrong


@pytest.mark.parametrize(("skews_ms", "said"), MACHINE_WRONG)
def test_if_more_than_half_contradict_it_alike_this_machine_is_wrong(
    skews_ms: list[int], said: str
) -> None:
    verdict = judge_clocks(name_venues(skews_ms))
    assert verdict.problem is not None
    assert verdict.problem.startswith(f"the clock of this machine is {said} that of the venues")
    assert verdict.wrong_skews_ms == {}


@pytest.mark.parametrize("skews_ms", UNDECIDED)
def test_if_nobody_can_know_the_report_of_each_venue_is_named_and_none_is_blamed(
    skews_ms: list[int],
) -> None:
    verdict = judge_clocks(name_venues(skews_ms))
    assert verdict.problem is not None
    assert "the clock of this machine is" not in verdict.problem
    assert "it is not known whose clock is right" in verdict.problem
    for name, skew in name_venues(skews_ms).items():
        expected = (
            describe_clock(name, skew) if abs(skew) > 30_000 else f"{name} confirms this machine's"
        )
        assert expected in verdict.problem


def test_without_any_venue_the_network_is_to_be_checked() -> None:
    assert judge_clocks({}) == ("no venue answers: check that this machine is online", {})


def test_a_clock_is_described_from_the_venues_side() -> None:
    assert describe_clock("okx", 45_000) == "the clock of okx is 45 s behind this machine's"
    assert describe_clock("okx", -600_400) == "the clock of okx is 600 s ahead of this machine's"


@pytest.mark.parametrize(
    ("skew_ms", "lag_s"),
    [
        (0, 0),
        (30_000, 0),
        (30_001, 31),
        (45_000, 45),
        (1_800_000, 1800),
        (1_800_001, 0),
        (-600_000, 0),
    ],
)
def test_bars_wait_for_a_clock_that_is_behind_by_up_to_half_an_hour(
    skew_ms: int, lag_s: int
) -> None:
    assert compute_lag_s(skew_ms) == lag_s
