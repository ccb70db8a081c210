"""The figures of docs/behavior.md: plain calculations on generated bars give the same ones.

The plain calculations read the files, build the bars and follow the alerts without `compute`; only
the readings are those of the indicators, which have oracles of their own.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations, groupby, pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tools.behavior import (
    PAGE,
    History,
    correlate_votes,
    count_independent_votes,
    find_published_positions,
    group_histories,
    main,
    render_blocks,
    render_changes,
    render_holds,
    render_shares,
    render_votes,
    update_page,
)

from compute.alerts.alert_pipeline import Alert
from compute.bars import DAY_S, HOUR_S
from compute.stepper import Cell
from compute.universe import load_universe
from mcp_server.tools.get_confluence import DESCRIPTION
from schemas.vocabulary import INDICATOR_IDS, LOGGED_IDS, Action
from tests.compute.alerts.test_alert_pipeline import read_separately
from tests.support.alert_model import ModelBar, run_engine, run_publisher
from tests.support.bar_sets import (
    copy_newest_rows,
    generate_folder,
    get_recorded_folder,
    load_series,
    require_recorded,
)
from tools.generate_docs import BLOCK_PATTERN

pytestmark = pytest.mark.clause("documents")

# A coin and a stock that alert engines follow, and one of each that they do not.
FOLLOWED_FILES = ("ETH_1h.csv", "ETH_funding.csv", "NVDA_1h.csv")
OTHER_FILES = ("DOGE_1h.csv", "MSFT_1d.csv")
CLASSES = {"ETH": "crypto", "DOGE": "crypto", "NVDA": "stock", "MSFT": "stock"}
COLUMNS = ["crypto 1h", "crypto 4h", "stock 1h", "stock 4h", "stock 1d"]
WORTH = re.compile(r"worth (\d\.\d to \d\.\d)\s+independent")
Blocks = Mapping[str, str]
Table = dict[str, dict[str, str]]
BarsByIndicator = Mapping[str, Sequence[ModelBar]]
Column = list[int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four generated assets, short enough for plain calculations."""
    folder = tmp_path_factory.mktemp("behavior") / "bars"
    copy_newest_rows(generate_folder(), folder, FOLLOWED_FILES, 1800)
    copy_newest_rows(generate_folder(), folder, OTHER_FILES, 900)
    return folder


@pytest.fixture(scope="module")
def blocks(folder: Path) -> Blocks:
    return asyncio.run(render_blocks(folder, load_universe()))


@pytest.fixture(scope="module")
def bars_by_label(folder: Path) -> dict[str, BarsByIndicator]:
    """The bars with their readings, by label such as `ETH 4h`, if there are two readings."""
    found = {label: read_separately(label, series) for label, series in load_series(folder)}
    return {label: bars for label, bars in found.items() if len(list_readings(bars["ceres"])) > 1}


@pytest.fixture(scope="module")
def sequences(bars_by_label: dict[str, BarsByIndicator]) -> dict[str, list[BarsByIndicator]]:
    """The same bars by the title of their column."""
    found: dict[str, list[BarsByIndicator]] = {}
    for label, bars in bars_by_label.items():
        ticker, timeframe = label.split()
        found.setdefault(f"{CLASSES[ticker]} {timeframe}", []).append(bars)
    assert sorted(found) == sorted(COLUMNS)
    return found


def list_readings(bars: Iterable[ModelBar]) -> Column:
    """Return the readings of one sequence, without the warm-up."""
    return [bar.reading for bar in bars if bar.reading is not None]


def parse_table(block: str) -> Table:
    """Return the cells of a Markdown table by the first cell of their row, then by column."""
    head, _, *rows = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in block.split("\n")
    )
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows if row}


def list_votes(assets: Sequence[BarsByIndicator]) -> pd.DataFrame:
    """Return the readings of all indicators on the bars of all assets."""
    columns = {name: [list_readings(bars[name]) for bars in assets] for name in INDICATOR_IDS}
    return pd.DataFrame({name: [*chain.from_iterable(parts)] for name, parts in columns.items()})


@pytest.mark.prove
def test_changes_are_those_of_a_plain_count(
    blocks: Blocks, sequences: dict[str, list[BarsByIndicator]]
) -> None:
    table, rates = parse_table(blocks["changes"]), {}
    for title, assets in sequences.items():
        days = 0.0
        for bars in assets:
            closes = [bar.close_time for bar in bars["ceres"] if bar.reading is not None]
            days += (closes[-1] - closes[0]) / DAY_S
        assert parse_table(blocks["sizes"])["days, summed over assets"][title] == f"{days:,.0f}"
        for name in INDICATOR_IDS:
            changes = 0
            for column in (list_readings(bars[name]) for bars in assets):
                changes += sum(a != b for a, b in pairwise(column))
            rates[title, name] = changes / days
            assert table[f"`{name}`"][title] == f"{changes / days:.2f}"
        feed = sum(rates[title, name] for name in LOGGED_IDS)
        assert table["the feed"][title] == f"{feed:.2f}"
    for kind in ("crypto", "stock"):
        chosen = [title for title in sequences if title.startswith(kind)]
        total = sum(rates[title, name] for title in chosen for name in LOGGED_IDS)
        assert table["the feed"][f"{kind}, all"] == f"{total:.2f}"
        assert (
            f"- **{kind}**: The feed has {total:.1f} changes per asset and day" in blocks["summary"]
        )


@pytest.mark.prove
def test_shares_are_those_of_a_plain_count(
    blocks: Blocks, sequences: dict[str, list[BarsByIndicator]]
) -> None:
    table, sizes = parse_table(blocks["shares"]), parse_table(blocks["sizes"])
    for title, assets in sequences.items():
        votes = list_votes(assets)
        assert sizes["assets"][title] == str(len(assets))
        assert sizes["bars with readings"][title] == f"{len(votes):,}"
        for name in INDICATOR_IDS:
            counts = [int((votes[name] == reading).sum()) for reading in (1, 0, -1)]
            expected = " / ".join(f"{count / len(votes):.0%}" for count in counts)
            assert table[f"`{name}`"][title] == expected


@pytest.mark.prove
def test_holding_times_are_those_of_a_plain_count(
    blocks: Blocks, sequences: dict[str, list[BarsByIndicator]]
) -> None:
    table = parse_table(blocks["holds"])
    for title, assets in sequences.items():
        for name in INDICATOR_IDS:
            held: dict[bool, list[int]] = {False: [], True: []}
            for column in (list_readings(bars[name]) for bars in assets):
                runs = [(reading, len(list(run))) for reading, run in groupby(column)]
                for reading, length in runs[1:-1]:
                    held[reading == 0].append(length)
            cells = [f"{np.median(held[key]):g}" if held[key] else "-" for key in (False, True)]
            assert table[f"`{name}`"][title] == " / ".join(cells)


@pytest.mark.prove
def test_the_dependence_of_votes_is_that_of_pandas_and_of_eigenvalues(
    blocks: Blocks, sequences: dict[str, list[BarsByIndicator]]
) -> None:
    table, pairs = parse_table(blocks["votes"]), parse_table(blocks["correlations"])
    known = 0
    for title, assets in sequences.items():
        correlations = list_votes(assets).corr()
        for a, b in combinations(INDICATOR_IDS, 2):
            figure = correlations[a][b]
            expected = "-" if np.isnan(figure) else f"{figure:.2f}"
            assert float_or_dash(pairs[f"`{a}`, `{b}`"][title]) == float_or_dash(expected)
        if not correlations.isna().any(axis=None):
            eigenvalues = np.linalg.eigvalsh(correlations)
            worth = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
            assert table["independent votes"][title] == f"{worth:.2f}"
            assert 1 < worth < len(INDICATOR_IDS)
            known += 1
    assert known >= 3


def float_or_dash(cell: str) -> float | str:
    return cell if cell == "-" else float(cell)


@pytest.mark.prove
def test_agreement_is_that_of_a_plain_count(
    blocks: Blocks, sequences: dict[str, list[BarsByIndicator]]
) -> None:
    table, highest = parse_table(blocks["votes"]), {"crypto": 0, "stock": 0}
    for title, assets in sequences.items():
        counts = []
        for votes in list_votes(assets).itertuples(index=False):
            counts.append(max(votes.count(1), votes.count(-1)))
        for number in range(3, 8):
            share = sum(count >= number for count in counts) / len(counts)
            row = "all 7 agree" if number == 7 else f"{number} or more agree"
            assert table[row][title] == (f"{share:.1%}" if share else "never")
        kind = title.split()[0]
        highest[kind] = max(highest[kind], *counts)
    said = re.findall(r"\*\*(\w+)\*\*: .+ of bars, and never more than (\d)\.", blocks["summary"])
    assert said == [(kind, str(number)) for kind, number in highest.items()]


def follow(acts: Sequence[tuple[int, str]], closes: Sequence[int]) -> list[str]:
    """Return the position after each close, one action and one close at a time."""
    positions = []
    for close in closes:
        position = "CLOSE"
        for at, action in acts:
            if at <= close:
                position = action
        positions.append(position)
    return positions


@pytest.mark.prove
def test_positions_differ_as_the_slow_model_of_engines_and_publishers_says(
    blocks: Blocks, bars_by_label: dict[str, BarsByIndicator]
) -> None:
    table, differing = parse_table(blocks["positions"]), 0
    for label in ("ETH 4h", "NVDA 4h", "NVDA 1d"):
        ticker, timeframe = label.split()
        title, shares = f"{CLASSES[ticker]} {timeframe}", []
        for name, bars in bars_by_label[label].items():
            closes = [bar.close_time for bar in bars if bar.reading is not None]
            published = run_publisher(timeframe, bars, closes[-1])
            fired = [(one.close_time, one.action) for one in run_engine(bars)]
            out = [(one.hour, one.action) for one in published]
            pairs = zip(follow(fired, closes), follow(out, closes), strict=True)
            differs = [engine != implied for engine, implied in pairs]
            differing += sum(differs)
            shares.append(sum(differs) / len(differs))
            assert table["bars"][title] == f"{len(differs):,}"
            assert table[f"`{name}`"][title] == f"{shares[-1]:.1%}"
        assert table["all"][title] == f"{np.mean(shares):.1%}"
    assert set(table["bars"]) == {"crypto 4h", "stock 4h", "stock 1d"}
    assert differing > 0


def make_history(ticker_class: str, timeframe: str, *columns: Sequence[int]) -> History:
    """Return a history whose first indicators read the given columns and the others the last."""
    filled = [*columns, *[columns[-1]] * (len(INDICATOR_IDS) - len(columns))]
    readings = np.array(filled, dtype=np.int8).T
    closes = np.arange(len(readings), dtype=np.int64) * 4 * HOUR_S
    return History(ticker_class, timeframe, closes, readings, None)  # type: ignore[arg-type]


def test_figures_by_hand() -> None:
    # Six 4h bars after the first one are a day; the second asset never changes.
    first = make_history("crypto", "4h", [0, 1, 1, 1, 0, 0, -1], [1, 1, 1, 1, 1, 1, 1])
    second = make_history("crypto", "4h", [1] * 7)
    groups = group_histories([first, second])
    assert parse_table(render_changes(groups))["`trend_oracle`"]["crypto 4h"] == "1.50"
    assert parse_table(render_changes(groups))["`ceres`"]["crypto, all"] == "0.00"
    # Ten of the fourteen bars are bullish, three neutral and one bearish.
    assert parse_table(render_shares(groups))["`trend_oracle`"]["crypto 4h"] == "71% / 21% / 7%"
    assert parse_table(render_holds(groups))["`trend_oracle`"]["crypto 4h"] == "3 / 2"
    assert parse_table(render_holds(groups))["`ceres`"]["crypto 4h"] == "- / -"
    votes = parse_table(render_votes(groups))
    assert votes["6 or more agree"]["crypto 4h"] == "100.0%"
    assert votes["all 7 agree"]["crypto 4h"] == "71.4%"
    assert votes["independent votes"]["crypto 4h"] == "-"  # six votes never change


def test_groups_are_ordered_by_class_and_timeframe() -> None:
    places = [("stock", "1h"), ("crypto", "1h"), ("stock", "1d"), ("crypto", "1d")]
    groups = group_histories(make_history(*place, [0, 1]) for place in places)
    assert [group.title for group in groups] == ["crypto 1h", "crypto 1d", "stock 1h", "stock 1d"]


def test_equal_and_opposite_votes_are_worth_one_and_unrelated_ones_their_number() -> None:
    a, b = np.array([1, 1, -1, -1]), np.array([1, -1, 1, -1])
    cases = [
        ([a, a, a], 1.0),
        ([a, -a], 1.0),
        ([a, b], 2.0),
        ([a, a, b], 9 / 5),
        ([a, b, -b], 9 / 5),
    ]
    for columns, worth in cases:
        votes = np.stack(columns, axis=1).astype(np.int8)
        assert count_independent_votes(correlate_votes(votes)) == pytest.approx(worth)


def test_a_position_is_that_of_the_last_alert_published_by_the_close() -> None:
    cell = Cell("BTC", "4h", "alerts.ceres")
    acts: list[tuple[int, Action]] = [
        (5, "LONG"),
        (8, "CLOSE"),
        (8, "SHORT"),
        (13, "BUY"),
        (17, "SELL"),
    ]
    alerts = [Alert(hour * HOUR_S, 0, cell, action, 1.0) for hour, action in acts]
    closes = np.arange(4, 21, 4, dtype=np.int64) * HOUR_S
    positions = find_published_positions(closes, [alerts, []])
    assert positions.T.tolist() == [[0, -1, -1, 1, -1], [0, 0, 0, 0, 0]]


@pytest.mark.prove
async def test_the_program_prints_every_block_and_logs_to_standard_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_newest_rows(folder, tmp_path, ("MSFT_1d.csv",), 900)
    blocks = await render_blocks(tmp_path, load_universe())
    capsys.readouterr()
    assert await asyncio.to_thread(main, [str(tmp_path)]) == 0
    shown = capsys.readouterr()
    printed = re.split(r"^## (\w+)\n\n", shown.out, flags=re.MULTILINE)[1:]
    titles, texts = printed[::2], [text.rstrip("\n") + "\n" for text in printed[1::2]]
    assert dict(zip(titles, texts, strict=True)) == blocks
    assert "row_rejected" in shown.err
    row = parse_table(blocks["assets"])["MSFT"]
    assert (row["class"], row["bars of"], row["funding"]) == ("stock", "1d", "-")


@pytest.mark.prove
def test_the_page_has_a_place_for_every_block_and_only_these_are_written(
    folder: Path, blocks: Blocks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, real = tmp_path / "behavior.md", PAGE.read_text()
    page.write_text(real)
    assert main([str(folder), "--write"], page) == 0
    assert capsys.readouterr().out == ""
    assert page.read_text() == update_page(real, blocks)
    assert {match[2] for match in BLOCK_PATTERN.finditer(real)} == set(blocks)
    assert BLOCK_PATTERN.sub("", page.read_text()) == BLOCK_PATTERN.sub("", real)


@pytest.mark.parametrize("rows", [0, 200])
def test_a_folder_without_enough_bars_gives_one_line(
    folder: Path, tmp_path: Path, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = tmp_path / "bars"
    copy_newest_rows(folder, bars, ("DOGE_1h.csv",) if rows else (), rows)
    assert main([str(bars)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    *_, line = shown.err.splitlines()
    assert line.startswith(f"{bars}: ")
    assert ("201 bars" in line) is bool(rows)


@pytest.mark.prove
def test_the_page_has_the_figures_of_the_recorded_bars() -> None:
    require_recorded()
    blocks = asyncio.run(render_blocks(get_recorded_folder(), load_universe()))
    assert update_page(PAGE.read_text(), blocks) == PAGE.read_text()


@pytest.mark.clause("4.8.15", "answers")
def test_texts_for_agents_have_the_figure_of_the_page() -> None:
    shown = {match[2]: match[0] for match in BLOCK_PATTERN.finditer(PAGE.read_text())}
    row = re.search(r"^\| independent votes \| (.+) \|$", shown["votes"], re.MULTILINE)
    assert row
    worth = [float(cell) for cell in row[1].split(" | ")]
    expected = f"{min(worth):.1f} to {max(worth):.1f}"
    for text in (DESCRIPTION, (PAGE.parent / "agents.md").read_text()):
        assert WORTH.findall(text) == [expected]
