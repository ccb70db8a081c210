"""What a page of the feed is made of: its query, and stored rows as rows of the feed."""

from typing import Any, Literal, NamedTuple

from schemas.signals import Signal, Transition
from schemas.vocabulary import (
    ACTION_DIRECTIONS,
    READING_NAMES,
    Action,
    AssetClass,
    Direction,
    Tier,
    Timeframe,
    classify_change,
    format_instant,
)
from store.market_rows import AlertRow, ChangeRow, FeedRow


class FeedQuery(NamedTuple):
    """A page of published rows; None stands for any value.

    Changes have a `created_at` in (`after`, `until`], alerts in (`alerts_after`, `until`], in epoch
    ms: each tier has its own retention.
    """

    tier: Tier | Literal["all"]
    after: int
    alerts_after: int
    until: int
    limit: int
    offset: int = 0
    oldest_first: bool = False
    tickers: tuple[str, ...] | None = None
    indicator: str | None = None
    timeframe: Timeframe | None = None
    direction: Direction | None = None


def build_signal(row: FeedRow, asset_class: AssetClass, indicator_name: str) -> Signal:
    """Return a stored row as a row of the feed; fields that its tier lacks are null."""
    fields: dict[str, Any]
    if isinstance(row, AlertRow):
        direction = ACTION_DIRECTIONS[row.action]
        fields = {"tier": "alerts", "direction": direction, "action": row.action}
    else:
        fields = {"tier": "universe", "direction": READING_NAMES[row.after]}
        if (before := row.before) is not None:
            fields["change_type"] = classify_change(before, row.after)
            fields["transition"] = Transition.model_construct(
                from_=READING_NAMES[before], to=READING_NAMES[row.after]
            )
    return Signal.model_construct(
        id=row.id,
        ticker=row.ticker,
        asset_class=asset_class,
        indicator=row.indicator,
        indicator_name=indicator_name,
        timeframe=row.timeframe,
        price=row.price,
        created_at=format_instant(row.created_at),
        **{"transition": None, "change_type": None, "action": None, **fields},
    )


def build_template(
    indicator: str,
    timeframe: Timeframe,
    indicator_name: str,
    before: int | None,
    after: int,
    action: Action | None,
) -> str:
    """Return a row of the feed as JSON, in which `%` operators stand for all that is not given.

    In order: ticker, close_time, epoch, ticker, asset_class, price and created_at.
    """
    # The model writes it once, so a row has the form of every other answer.
    given: Any = ("%s", indicator, timeframe, "%d", "%d")
    row: FeedRow = (
        ChangeRow._make([0, *given, before, after, 0.5, True])
        if action is None
        else AlertRow._make([0, *given, action, 0.5])
    )
    asset_class: Any = "%s"
    signal = build_signal(row, asset_class, indicator_name.replace("%", "%%"))
    signal = signal.model_copy(update={"created_at": "%s"})
    text = signal.model_dump_json(by_alias=True, warnings=False)
    # Quotes inside a JSON string are escaped, so this can only be the member.
    return text.replace('"price":0.5', '"price":%s')
