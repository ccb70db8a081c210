"""The sample pages of assets agree with the sample board and the sample feed."""

import pytest

from rest_shim.sample import build_sample
from schemas.vocabulary import TIMEFRAMES, find_latest_run
from serving.argument_values import parse_instant_ms
from web.sample import SAMPLE_TICKERS, build_sample_asset, build_sample_model

pytestmark = pytest.mark.clause("15.6")


def test_every_asset_of_the_sample_board_has_a_page_that_ends_in_its_readings() -> None:
    for timeframe in TIMEFRAMES:
        board = build_sample_model(timeframe).state.assets
        assert {asset.ticker for asset in board} == SAMPLE_TICKERS
        for asset in board:
            model = build_sample_asset(asset.ticker, timeframe)
            assert model is not None
            assert model.chart is not None
            ends = {lane.indicator: lane.spans[-1].reading for lane in model.chart.lanes}
            assert model.chart.bars is not None
            assert model.price is not None
            if timeframe == "1h":
                assert model.chart.bars.closes[-1] == pytest.approx(model.price.last_close)
            assert ends == {key: cells[timeframe] for key, cells in asset.signals.items()}
    assert build_sample_asset("DOGE", "4h") is None


def test_rows_of_the_sample_feed_are_on_the_pages_with_a_bar_at_their_price() -> None:
    for row in build_sample().signals:
        model = build_sample_asset(row.ticker, row.timeframe)
        assert model is not None
        assert model.chart is not None
        assert row in model.rows
        fired = find_latest_run(parse_instant_ms("created_at", row.created_at)) - 180_000
        bar = model.chart.axis.find_bar(fired)
        assert bar is not None
        assert model.chart.bars is not None
        assert model.chart.bars.closes[bar] == pytest.approx(row.price)
        assert fired in {mark.at for mark in model.chart.marks}
