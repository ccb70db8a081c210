"""The error of calls that come before the first start has built the history."""

from schemas.coverage import Coverage
from schemas.errors import NotBuiltError
from schemas.vocabulary import format_instant

FIRST_COMPUTE_RETRY_S = 900
# A simulated market is built in seconds, the history of live markets in minutes.
BUILDING_RETRY_S, LIVE_RETRY_S = 5, 60


def build_not_built_error(
    coverage: Coverage | None, first: int | None, last: int | None
) -> NotBuiltError:
    """Return the error that says how much of the history is built.

    `first` and `last` are the market times (epoch ms) of the first and the last commit.
    """
    if coverage is None or coverage.served_from is None:
        return NotBuiltError(
            "Nothing has been computed yet: the compute job has not finished its first run.",
            FIRST_COMPUTE_RETRY_S,
            0,
        )
    percent = calculate_percent(first, last, coverage.served_from)
    built = "nothing yet" if last is None else f"up to {format_instant(last)}"
    return NotBuiltError(
        "The history is still being built, and nothing is served until it is complete: "
        f"{percent} % done, built {built}, needed up to {format_instant(coverage.served_from)}.",
        LIVE_RETRY_S if coverage.source == "live" else BUILDING_RETRY_S,
        percent,
    )


def calculate_percent(first: int | None, last: int | None, needed_until: int) -> int:
    """Return the built share of the history up to a market time (epoch ms), rounded down."""
    # The first commit begins at no known time, but it is only one of about ten.
    if first is None or last is None or first >= needed_until:
        return 0
    return 100 * (min(last, needed_until) - first) // (needed_until - first)
