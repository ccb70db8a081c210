"""What visitors see: fixed readings, bars, changes and prices in the format of live ones.

The board, the feed and the pages of assets agree with each other.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby, pairwise
from typing import Any

from mcp_server.tools.get_confluence import RULES as CONFLUENCE_RULES
from mcp_server.tools.get_confluence import build_result, rank_results
from mcp_server.tools.get_flips import RULES as FLIPS_RULES
from mcp_server.tools.get_flips import WINDOW_HOURS
from mcp_server.tools.state_matrix import LETTERS
from rest_shim.sample import SAMPLE_NAMES, build_sample
from schemas.catalog import CatalogAsset
from schemas.confluence import ConfluenceEcho, ConfluenceMeta, ConfluenceQuery, ConfluenceResponse
from schemas.flips import (
    Flip,
    FlipGroup,
    FlipsCounts,
    FlipsEcho,
    FlipsMeta,
    FlipsQuery,
    FlipsResponse,
)
from schemas.result import Freshness
from schemas.signals import Pagination, Signal, SignalsQuery, SignalsResponse
from schemas.state import AssetState, StateCounts, StateMeta, StateResponse
from schemas.vocabulary import (
    DAY_MS,
    HOUR_MS,
    LOGGED_IDS,
    RUN_DELAY_MS,
    TIMEFRAME_DURATIONS_S,
    TIMEFRAMES,
    AssetClass,
    IndicatorId,
    Reading,
    StoredKey,
    Timeframe,
    find_latest_run,
    fold_name,
    format_instant,
)
from serving.argument_values import parse_instant_ms
from serving.arguments import ArgumentError, unknown_indicator_problem
from serving.prices import BarColumns, PriceSummary
from serving.signal_rows import build_signal
from store.market_rows import AlertRow, ChangeRow, FeedRow
from web.asset_chart import CHART_DAYS, MAX_ROWS, AssetModel, build_chart
from web.board_model import BoardModel, BoardTimeframe

_READINGS: dict[str, Reading] = {letter: reading for reading, letter in LETTERS.items()}
_COLUMNS: tuple[IndicatorId, ...] = (
    "trend_oracle",
    "bayesian_trend",
    "reversals",
    "ceres",
    "enzo",
    "llnr",
    "perpkit",
)
# One word per timeframe and one letter per column. They must agree with the sample feed.
_ROWS: tuple[tuple[str, str, AssetClass, str], ...] = (
    ("BTC", "Bitcoin", "crypto", "UUNUUNN UUNUUDN UUUNUNN"),
    ("ETH", "Ethereum", "crypto", "UNNNUUN UUNNUUN UNNUUNN"),
    ("SOL", "Solana", "crypto", "DDNDNND DDNDNUD NDNNNUN"),
    ("XRP", "XRP", "crypto", "NNUNDNN NDNNDNN DDNNDNN"),
    ("NVDA", "NVIDIA", "stock", "UUNNUNN UNNNUNN UUNNUUN"),
    ("AAPL", "Apple", "stock", "NDUNNDN NNUNNDN UNNNNNN"),
    ("TSLA", "Tesla", "stock", "DNUDDDN DDNDDDN DDNNDDN"),
    ("XAU", "Gold", "metal", "UUNNNUN UUNNNUN UUNUUUN"),
    ("XAG", "Silver", "metal", "NUDNUNN UNDNUNN UUNNUNN"),
)
# The last close and four-hourly closes of a week, oldest first: each letter is a close relative to
# the last one, in steps of 0.4 %, "m" for equal. The prices are those of the sample feed.
_CLOSES: dict[str, tuple[float, str]] = {
    "BTC": (114_250.5, "ccbdefedfghgfhijihjkkjlkjkllmlkklmnkllmmnm"),
    "ETH": (4145.2, "aabcbdccedefgfegihgijhkjiklkjlkmlkmllnmnlm"),
    "SOL": (208.62, "yxyzwxvwuvwtuvstursqtrqspqroqpnopnqopnoomm"),
    "XRP": (2.8471, "rqsrtqrsqrpqqroppqonpopnoqnopmonpmnonmonmm"),
    "NVDA": (187.24, "hhiiggfgghijhijjkijkkllkjkllmmlklmmnmllmmm"),
    "AAPL": (254.63, "nmonmmolmnnomnlmonmlmnnolmnmnolmnmmnlmnmnm"),
    "TSLA": (444.72, "qrsrqstrqrsqppqrpqopqoppqonpoqnoponqopnnom"),
    "XAU": (3865.4, "ffgfghgghghihhijiijijkjkkjkklklkllmlmmlmmm"),
    "XAG": (46.65, "bcdbcedcefdfghfgihgjhikjikjlkjllkmlkmllnlm"),
}
_STEP = 0.004


@cache
def build_sample_model(timeframe: BoardTimeframe, *, with_prices: bool = True) -> BoardModel:
    """Return the sample board; its states have every timeframe, whichever is shown."""
    feed = build_sample()
    meta = feed.meta.model_dump(include=set(StateMeta.model_fields), by_alias=True)
    states = [_build_state(*row) for row in _ROWS]
    shown = len(TIMEFRAMES) if timeframe == "all" else 1
    return BoardModel(
        tracked=[
            CatalogAsset(ticker=state.ticker, name=state.name, asset_class=state.asset_class)
            for state in states
        ],
        names=SAMPLE_NAMES,
        state=StateResponse(
            as_of=feed.meta.as_of,
            assets=states,
            counts=StateCounts(assets=len(states), readings=shown * len(states) * len(_COLUMNS)),
            meta=StateMeta(**meta, last_bars=[], not_covered=[], legacy_keys={}),
        ),
        prices=_build_prices(feed.meta.as_of) if with_prices else None,
    )


def _build_state(ticker: str, name: str, asset_class: AssetClass, words: str) -> AssetState:
    return AssetState(
        ticker=ticker,
        name=name,
        asset_class=asset_class,
        signals={
            indicator: {
                timeframe: _READINGS[word[column]]
                for timeframe, word in zip(TIMEFRAMES, words.split(), strict=True)
            }
            for column, indicator in enumerate(_COLUMNS)
        },
    )


def _build_prices(as_of: str) -> dict[str, PriceSummary]:
    closed_at = parse_instant_ms("as_of", as_of) // HOUR_MS * HOUR_MS
    return {
        ticker: _build_summary(last_close, letters, closed_at)
        for ticker, (last_close, letters) in _CLOSES.items()
    }


def _build_summary(last_close: float, letters: str, closed_at: int) -> PriceSummary:
    closes = [last_close * (1 + _STEP * (ord(letter) - ord("m"))) for letter in letters]
    # Six closes of four hours are a day.
    return PriceSummary(last_close, closed_at, last_close / closes[-7] - 1, closes)


_HOURLY_MOVES: dict[AssetClass, float] = {"crypto": 0.008, "stock": 0.006, "metal": 0.003}
# A trading day of the sample's stocks, as the UTC hours in which their bars open.
_STOCK_HOURS = range(13, 20)
# The indicators of the sample, and the bars over which each compares closes.
_WINDOWS: dict[IndicatorId, int] = {
    "trend_oracle": 20,
    "bayesian_trend": 30,
    "reversals": 8,
    "ceres": 14,
    "enzo": 24,
    "llnr": 50,
    "perpkit": 12,
}
_NUMBERS: dict[Reading, int] = {"bullish": 1, "neutral": 0, "bearish": -1}
_NAMES = {str(id_): name for id_, name in SAMPLE_NAMES.items()}
_HISTORY_DAYS = CHART_DAYS["1d"] + 60


def _get_boards() -> dict[Timeframe, BoardModel]:
    return {timeframe: build_sample_model(timeframe) for timeframe in TIMEFRAMES}


def _find_end() -> int:
    """Return the hour (epoch ms) up to which the sample has bars."""
    at = parse_instant_ms("as_of", build_sample_model("1h").state.as_of)
    return find_latest_run(at) - RUN_DELAY_MS


SAMPLE_TICKERS = frozenset(asset.ticker for asset in build_sample_model("1h").tracked)


@cache
def build_sample_asset(ticker: str, timeframe: Timeframe) -> AssetModel | None:
    """Return the sample of an asset's page, None if the sample board lacks the asset."""
    if ticker not in SAMPLE_TICKERS:
        return None
    end, state = _find_end(), _build_asset_state(ticker)
    (asset,) = state.assets
    hourly = _generate_hours(ticker, asset.asset_class)
    bars = {each: _resample(hourly, each, end) for each in TIMEFRAMES}
    changes = {each: _generate_changes(asset, each, bars[each]) for each in TIMEFRAMES}
    begins = end - CHART_DAYS[timeframe] * DAY_MS
    shown = [row for row in changes[timeframe] if row.created_at > begins]
    alerts = [_to_alert(row) for row in _list_feed(ticker, timeframe) if row.tier == "alerts"]
    chart = build_chart(
        shown,
        alerts,
        {id_: cells[timeframe] for id_, cells in asset.signals.items()},
        _NAMES,
        _cut(bars[timeframe], begins),
        timeframe,
        begins,
        end,
    )
    rows: list[FeedRow] = [*(row for row in shown if row.published), *alerts]
    rows = sorted(rows, key=lambda row: row.created_at, reverse=True)[:MAX_ROWS]
    return AssetModel(
        state=state,
        names=_NAMES,
        as_of=end,
        changed_at={
            (row.indicator, row.timeframe): row.close_time * 1000
            for each in changes.values()
            for row in each
        },
        chart=chart,
        rows=[build_signal(row, asset.asset_class, _NAMES[row.indicator]) for row in rows],
        fired_at={row.id: row.close_time * 1000 for row in rows},
        held=frozenset(),
        price=_find_price(ticker),
    )


def _build_asset_state(ticker: str) -> StateResponse:
    """Return the readings of the sample board on all timeframes."""
    boards = _get_boards()
    state = boards["1h"].state
    found = {
        timeframe: next(each for each in board.state.assets if each.ticker == ticker)
        for timeframe, board in boards.items()
    }
    signals: dict[StoredKey, dict[Timeframe, Reading]] = {
        id_: {timeframe: each.signals[id_][timeframe] for timeframe, each in found.items()}
        for id_ in _WINDOWS
    }
    asset = found["1h"]
    return StateResponse(
        as_of=state.as_of,
        assets=[
            AssetState(
                ticker=ticker, name=asset.name, asset_class=asset.asset_class, signals=signals
            )
        ],
        counts=StateCounts(assets=1, readings=len(signals) * len(TIMEFRAMES)),
        meta=state.meta,
    )


def _list_feed(ticker: str, timeframe: Timeframe) -> list[Signal]:
    """Return the rows of the sample feed on an asset and timeframe, newest first."""
    rows = build_sample().signals
    return [row for row in rows if (row.ticker, row.timeframe) == (ticker, timeframe)]


def _find_close(row: Signal) -> int:
    """Return the close (epoch ms) of the bar that fired a row of the sample feed."""
    return find_latest_run(parse_instant_ms("created_at", row.created_at)) - RUN_DELAY_MS


def _find_anchor(ticker: str) -> tuple[int, float]:
    """Return a time (epoch ms) and the price in the sample feed, or the end and the board's."""
    for row in build_sample().signals:
        if row.ticker == ticker and row.price is not None:
            return _find_close(row), row.price
    return _find_end(), _find_price(ticker).last_close


def _find_price(ticker: str) -> PriceSummary:
    """Return the price on the sample board."""
    prices = build_sample_model("1h").prices
    assert prices is not None
    return prices[ticker]


@cache
def _generate_hours(ticker: str, asset_class: AssetClass) -> BarColumns:
    """Return hourly bars of a random walk with waves, seeded by the ticker."""
    # Only `random()` gives the same numbers for a seed in every version of Python.
    draw = random.Random(f"sample of {ticker}").random
    move, price = _HOURLY_MOVES[asset_class], 1.0
    wave, phase = 24 * (12 + 10 * draw()), 6.28 * draw()
    end = _find_end()
    rows = []
    for at in range(end - _HISTORY_DAYS * DAY_MS, end, HOUR_MS):
        if asset_class == "stock" and not _is_trading(at):
            continue
        step = move * (draw() + draw() + draw() - 1.5)
        step += move / 9 * math.sin(phase + at / HOUR_MS * 6.28 / wave)
        close = price * math.exp(step)
        high = max(price, close) * (1 + move / 2 * draw())
        low = min(price, close) * (1 - move / 2 * draw())
        rows.append((at, price, high, low, close, 800 + 4000 * draw() * (1 + abs(step) / move)))
        price = close
    anchor, wanted = _find_anchor(ticker)
    place = max(i for i, row in enumerate(rows) if row[0] + HOUR_MS <= anchor)
    scale, after = wanted / rows[place][4], len(rows) - 1 - place
    # The bars after the anchor bend to the last price of the board.
    bend = _find_price(ticker).last_close / (rows[-1][4] * scale) - 1
    scales = [scale * (1 + bend * max(0, i - place) / max(1, after)) for i in range(len(rows))]
    return _to_columns(
        [
            (at, *(value * factor for value in ohlc), volume)
            for factor, (at, *ohlc, volume) in zip(scales, rows, strict=True)
        ]
    )


def _is_trading(at: int) -> bool:
    # Day 0 of the epoch was a Thursday.
    return (at // DAY_MS + 3) % 7 < 5 and at % DAY_MS // HOUR_MS in _STOCK_HOURS


def _resample(hours: BarColumns, timeframe: Timeframe, end: int) -> BarColumns:
    """Return the bars of a timeframe that have closed by `end`."""
    period = TIMEFRAME_DURATIONS_S[timeframe] * 1000
    groups = groupby(zip(*hours, strict=True), key=lambda row: row[0] // period * period)
    return _to_columns([_join(at, [*rows]) for at, rows in groups if at + period <= end])


def _join(at: int, rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    _, opens, highs, lows, closes, volumes = zip(*rows, strict=True)
    return at, opens[0], max(highs), min(lows), closes[-1], sum(volumes)


def _to_columns(rows: Sequence[tuple[float, ...]]) -> BarColumns:
    times, *values = zip(*rows, strict=True)
    return BarColumns([int(at) for at in times], *values)


def _cut(bars: BarColumns, begins: int) -> BarColumns:
    first = next(i for i, at in enumerate(bars.open_times) if at >= begins)
    return BarColumns(bars.open_times[first:], *(column[first:] for column in bars[1:]))


def _generate_changes(asset: AssetState, timeframe: Timeframe, bars: BarColumns) -> list[ChangeRow]:
    """Return the changes of all readings on a timeframe, oldest first."""
    rows = [row for id_ in _WINDOWS for row in _list_turns(asset, id_, timeframe, bars)]
    by_time = sorted(rows, key=lambda row: row.close_time)
    # Rows of one run are milliseconds apart; those of the sample feed keep their own times.
    written = {row.id: row.created_at for row in _list_feed(asset.ticker, timeframe)}
    return [
        row._replace(
            created_at=parse_instant_ms("created_at", written[row.id])
            if row.id in written
            else row.created_at + number % 1000
        )
        for number, row in enumerate(by_time)
    ]


def _list_turns(
    asset: AssetState, indicator: IndicatorId, timeframe: Timeframe, bars: BarColumns
) -> Iterator[ChangeRow]:
    readings = _generate_readings(asset, indicator, timeframe, bars)
    period = TIMEFRAME_DURATIONS_S[timeframe]
    for i, (before, after) in enumerate(pairwise(readings), 1):
        if before != after:
            closed = bars.open_times[i] // 1000 // period * period + period
            yield ChangeRow(
                created_at=closed * 1000 + RUN_DELAY_MS,
                ticker=asset.ticker,
                indicator=indicator,
                timeframe=timeframe,
                close_time=closed,
                epoch=0,
                before=before,
                after=after,
                price=round(bars.closes[i], 4),
                published=indicator in LOGGED_IDS,
            )


def _generate_readings(
    asset: AssetState, indicator: IndicatorId, timeframe: Timeframe, bars: BarColumns
) -> list[int]:
    """Return a reading for each bar: the trend of the closes, and at the end the sample's."""
    window, closes = _WINDOWS[indicator], bars.closes
    move = sum(abs(math.log(b / a)) for a, b in pairwise(closes)) / len(closes) * math.sqrt(window)
    readings = [0] * min(window, len(closes))
    for i in range(window, len(closes)):
        change, last = math.log(closes[i] / closes[i - window]) / move, readings[-1]
        stays = abs(change) > 0.3 and (change > 0) == (last > 0)
        readings.append(last if stays else (change > 1) - (change < -1))
    final = _NUMBERS[asset.signals[indicator][timeframe]]
    for row in _list_feed(asset.ticker, timeframe):
        if row.indicator == indicator and row.transition is not None:
            place = bars.open_times.index(
                _find_close(row) - TIMEFRAME_DURATIONS_S[timeframe] * 1000
            )
            readings[place - window : place] = [_NUMBERS[row.transition.from_]] * window
            return readings[:place] + [final] * (len(readings) - place)
    return readings[: -window // 2] + [final] * -(-window // 2)


def _to_alert(row: Signal) -> AlertRow:
    assert row.action is not None
    assert row.price is not None
    created_at = parse_instant_ms("created_at", row.created_at)
    closed = _find_close(row) // 1000
    cell = (row.ticker, row.indicator, row.timeframe)
    return AlertRow(created_at, *cell, closed, 0, row.action, row.price)


def build_sample_feed(query: SignalsQuery) -> SignalsResponse:
    """Return the page of the sample feed that a query selects; ArgumentError as the tool's."""
    sample = build_sample()
    rows = list(_select_rows(query, sample.signals))
    ordered = rows if query.order == "newest" else rows[::-1]
    page = ordered[query.offset : query.offset + query.limit]
    pagination = Pagination(
        limit=query.limit,
        offset=query.offset,
        returned=len(page),
        has_more=len(ordered) > query.offset + query.limit,
        next_cursor=max((row.created_at for row in page), default=None),
    )
    return sample.model_copy(update={"signals": page, "pagination": pagination})


def _select_rows(query: SignalsQuery, rows: Iterable[Signal]) -> Iterable[Signal]:
    since = None if query.since is None else parse_instant_ms("since", query.since)
    indicator = None if query.indicator is None else _find_indicator(query.indicator)
    for row in rows:
        if (
            query.tier in ("all", row.tier)
            and _is_of_asset(row, query.ticker, query.asset_class)
            and (indicator or row.indicator) == row.indicator
            and (query.timeframe or row.timeframe) == row.timeframe
            and (query.direction or row.direction) == row.direction
            and (since is None or parse_instant_ms("created_at", row.created_at) > since)
        ):
            yield row


def _is_of_asset(row: Signal, tickers: str | None, asset_class: AssetClass | None) -> bool:
    """Return true if a row is of one of comma-separated tickers and of a class, if any is given."""
    requested = [ticker.strip() for ticker in (tickers or row.ticker).upper().split(",")]
    return row.ticker in requested and asset_class in (None, row.asset_class)


def _find_indicator(text: str) -> str:
    for id_, name in SAMPLE_NAMES.items():
        if fold_name(text) in (fold_name(id_), fold_name(name)):
            return id_
    raise ArgumentError(unknown_indicator_problem(text, SAMPLE_NAMES))


def build_sample_flips(query: FlipsQuery) -> FlipsResponse:
    """Return the sample's changes in a window as flips; they are the same on every timeframe."""
    sample = build_sample()
    hours = query.hours or WINDOW_HOURS[query.timeframe].default
    after = format_instant(parse_instant_ms("as_of", sample.meta.as_of) - hours * HOUR_MS)
    groups = [
        _build_group(row)
        for row in sample.signals
        if row.tier == "universe"
        and _is_of_asset(row, query.ticker, query.asset_class)
        and row.created_at > after
        and query.direction in ("all", row.direction)
    ]
    groups.sort(key=lambda group: (group.score, group.latest_at), reverse=True)
    return FlipsResponse(
        as_of=sample.meta.as_of,
        query=FlipsEcho(timeframe=query.timeframe, hours=hours, direction=query.direction),
        groups=groups,
        counts=FlipsCounts(groups=len(groups), flips=len(groups)),
        capped=False,
        meta=FlipsMeta(**_dump_freshness(sample.meta), rules=FLIPS_RULES),
    )


def _build_group(row: Signal) -> FlipGroup:
    names = {asset.ticker: asset.name for asset in build_sample_model("4h").state.assets}
    assert row.transition is not None
    copied = row.model_dump(include=set(Flip.model_fields))
    flip = Flip.model_validate({**copied, "from_": row.transition.from_, "to": row.transition.to})
    bullish, bearish = int(flip.to == "bullish"), int(flip.to == "bearish")
    return FlipGroup(
        ticker=row.ticker,
        name=names[row.ticker],
        asset_class=row.asset_class,
        dominant="bullish" if bullish else "bearish" if bearish else "mixed",
        bullish=bullish,
        bearish=bearish,
        score=max(bullish, bearish),
        latest_at=row.created_at,
        flips=[flip],
    )


def build_sample_confluence(query: ConfluenceQuery) -> ConfluenceResponse:
    """Return the sample board's assets on which enough indicators agree, at any `as_of`."""
    if query.as_of is not None:
        parse_instant_ms("as_of", query.as_of)
    board = build_sample_model(query.timeframe)
    polled = [
        build_result(
            asset,
            {key: cells[query.timeframe] for key, cells in asset.signals.items()},
            query.direction,
        )
        for asset in board.state.assets
        if query.asset_class in (None, asset.asset_class)
    ]
    sample = build_sample()
    return ConfluenceResponse(
        as_of=sample.meta.as_of,
        query=ConfluenceEcho(**query.model_dump(exclude={"as_of", "detail"})),
        results=rank_results(result for result in polled if result.agree >= query.min_agree),
        meta=ConfluenceMeta(**_dump_freshness(sample.meta), legacy_keys={}, rules=CONFLUENCE_RULES),
    )


def _dump_freshness(meta: Freshness) -> dict[str, Any]:
    return meta.model_dump(include=set(Freshness.model_fields), by_alias=True)
