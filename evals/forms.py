"""The forms of the questions, each with the script that answers it."""

from evals.scripts import (
    check_if_fresh,
    check_if_real,
    compare_pair,
    count_alerts,
    count_changes,
    count_days,
    count_differences,
    find_first_day,
    find_largest_share,
    find_last_bar,
    list_followed,
    list_newly_agreeing,
    list_removed,
    list_turned_assets,
    list_turned_indicators,
    measure_age,
    read_before_change,
    read_if_listed,
    read_replacement,
    read_successor,
    read_top_flip,
)
from evals.solver import Form, Solver, build_form

FORMS: tuple[Form, ...] = tuple(
    build_form(text, script)
    for text, script in (
        (
            "How many of the seven indicators read differently for {ticker} on {timeframe} at {a} "
            "than at {b}?",
            count_differences,
        ),
        (
            "Which indicators of {ticker} on {timeframe} were {before} at {a} and {after} at {b}? "
            "Answer with their ids.",
            list_turned_indicators,
        ),
        (
            "Which {kind} assets had a {before} {indicator} reading on {timeframe} at {a} and a "
            "{after} one at {b}?",
            list_turned_assets,
        ),
        (
            "On which {kind} assets were at least {count} indicators {side} on {timeframe} at {b}, "
            "but not at {a}?",
            list_newly_agreeing,
        ),
        (
            "On how many of the days from {first} to {last}, each at 00:00 UTC, was the "
            "{indicator} reading of {ticker} on {timeframe} {reading}?",
            count_days,
        ),
        (
            "Of the days from {first} to {last}, each at 12:00 UTC, which is the first on which "
            "the {indicator} reading of {ticker} on {timeframe} was {reading}?",
            find_first_day,
        ),
        (
            "An hour before the newest change of {changed} for {ticker} on {timeframe} was "
            "published, what did {indicator} read there?",
            read_before_change,
        ),
        (
            "How many changes of {ticker} on {timeframe} were published after {a} and up to {b}, "
            "and what did {indicator} read there at the end?",
            count_changes,
        ),
        (
            "How many {action} alerts did {ticker} have on {timeframe} after {a} and up to {b}, "
            "and what did {indicator} read there at the end?",
            count_alerts,
        ),
        (
            "Which class had the largest share of {reading} readings on {timeframe} at {a}: "
            "crypto, stock or metal?",
            find_largest_share,
        ),
        (
            "Did {first} and {second} have the same {indicator} reading on {timeframe} at each of "
            "{a}, {b} and {c}? Answer yes or no.",
            compare_pair,
        ),
        (
            "Under which ticker does the removed {removed} continue, and what did {indicator} read "
            "for it on {timeframe} at {a}?",
            read_successor,
        ),
        (
            "Which asset ranks first in the flips of the last {hours} hours on {timeframe}, and "
            "what did {indicator} read for it on that timeframe at {a}?",
            read_top_flip,
        ),
        (
            "Of the assets that alert engines follow, which had a {reading} {indicator} reading on "
            "{timeframe} at {a}?",
            list_followed,
        ),
        ("What did {indicator} read for {ticker} on {timeframe} at {a}?", read_if_listed),
        ("What will {indicator} read for {ticker} on {timeframe} at {a}?", read_if_listed),
        ("Are the prices of this service those of a real market? Answer yes or no.", check_if_real),
        ("Are the readings of {ticker} up to date now? Answer yes or no.", check_if_fresh),
        ("How many whole minutes ago were the readings computed?", measure_age),
        ("Which key replaces the outdated key {key} of {ticker}?", read_replacement),
        ("When did the last bar of {ticker} close? Answer as 2026-01-31 23:00.", find_last_bar),
        (
            "Which assets of the board were removed, so that their readings no longer change?",
            list_removed,
        ),
    )
)
SOLVER = Solver(FORMS)
