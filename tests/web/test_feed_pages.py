"""The pages of the feed, the flips and the confluence show what their tools return."""

import csv
import io
import itertools
import re
import xml.etree.ElementTree as ET
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx
import pytest

from mcp_server.tools.get_confluence import GET_CONFLUENCE
from mcp_server.tools.get_flips import GET_FLIPS
from mcp_server.tools.get_signals import GET_SIGNALS
from schemas.coverage import CoveredAsset
from schemas.vocabulary import INDICATOR_IDS, TIMEFRAMES
from serving.fair_share import FairShare
from store.market_rows import AlertRow
from tests.support.example_market import (
    ASSETS,
    HOUR_MS,
    LATER,
    NAMES,
    NOON,
    make_batch,
    make_change,
    make_coverage,
)
from tests.support.running_service import (
    RunningService,
    fetch,
    publish_assets,
    run_service,
    served as served,
)
from tests.support.web_page import (
    EMAIL,
    MAX_BYTES,
    Page,
    check_page,
    open_new_member,
    open_owner_browser,
    read_page_files,
)

TOOLS = {
    "feed": (GET_SIGNALS, "/signals", "Feed"),
    "flips": (GET_FLIPS, "/flips", "Flips"),
    "confluence": (GET_CONFLUENCE, "/confluence", "Confluence"),
}
# At least one value of every argument, and combinations that have rows and that have none.
QUERIES = (
    ("feed", {}),
    ("feed", {"tier": "all", "limit": "3"}),
    ("feed", {"tier": "all", "limit": "2", "offset": "2", "order": "oldest"}),
    ("feed", {"ticker": "btc", "indicator": "Trend Oracle", "timeframe": "1h"}),
    ("feed", {"direction": "neutral", "since": "2026-09-30T12:03:00.002Z"}),
    ("feed", {"tier": "alerts"}),
    ("flips", {}),
    ("flips", {"timeframe": "1h", "hours": "6", "direction": "bearish"}),
    ("confluence", {}),
    ("confluence", {"direction": "bearish", "min_agree": "6", "timeframe": "1d"}),
    ("confluence", {"asset_class": "crypto", "as_of": "2026-09-30T11:30:00Z"}),
)


async def get_view(
    served: RunningService,
    view: str,
    *texts: str,
    status: int = 200,
    is_member: bool = True,
    **sent: str,
) -> Page:
    answer = await served.get_page(f"/{view}?{urlencode(sent)}", is_member=is_member)
    return check_page(answer, status, TOOLS[view][2], *texts)


def list_rows(page: Page) -> list[list[str]]:
    """Return the cells of the table's rows without those of runs, with single spaces."""
    rows = ([" ".join(cell.split()) for cell in row] for row in page.rows[1:])
    return [row for row in rows if len(row) > 1 and row[0] != "Asset"]


def list_runs(page: Page) -> list[str]:
    """Return the headings of the runs of the feed, with single spaces."""
    return [" ".join(row[0].split()) for row in page.rows[1:] if len(row) == 1]


def list_field_names(page: Page) -> set[str | None]:
    controls = page.find_all("input") + page.find_all("select")
    return {field.get("name") for field in controls} - {"form_token", None}


@pytest.mark.clause("pages")
@pytest.mark.clause("17.1")
@pytest.mark.parametrize(("view", "query"), QUERIES)
async def test_a_page_lists_the_rows_of_its_tool_in_order(served, view, query):
    answer = (await served.get_api(f"{TOOLS[view][1]}?{urlencode(query)}")).json()
    rows = list_rows(await get_view(served, view, **query))
    if view == "feed":
        expected = [
            (one["ticker"], one["indicator_name"], one["timeframe"]) for one in answer["signals"]
        ]
        assert [(row[0].split()[0], row[1], row[2]) for row in rows] == expected
        for row, one in zip(rows, answer["signals"], strict=True):
            change = one["transition"]
            assert row[3].startswith(f"{change['from']} → to {change['to']}"), row
            assert row[4] == "101.50"
    elif view == "flips":
        expected = [
            (f"{one['ticker']} {one['name']}", f"bullish {one['bullish']}", len(one["flips"]))
            for one in answer["groups"]
        ]
        assert [(row[0], row[1], row[3].count("→")) for row in rows] == expected
    else:
        expected = [
            [
                f"{one['ticker']} {one['name']}",
                f"{one['agree']} of {one['total_reporting']}",
                *(one["votes"].get(id_, "no reading") for id_ in INDICATOR_IDS),
            ]
            for one in answer["results"]
        ]
        assert [row[: 2 + len(INDICATOR_IDS)] for row in rows] == expected


@pytest.mark.clause("pages")
@pytest.mark.clause("17.1")
async def test_an_alert_shows_its_action_and_a_held_one_when_it_fired(
    served_alone: RunningService,
):
    later, fired_s = NOON + HOUR_MS, (NOON - 10 * HOUR_MS) // HOUR_MS * 3600
    fresh = AlertRow(later, "BTC", "enzo", "4h", later // HOUR_MS * 3600, 0, "LONG", 99.5)
    held = AlertRow(later + 1, "BTC", "ceres", "4h", fired_s, 0, "SHORT", 98.5)
    await served_alone.market.commit(replace(make_batch(later, []), alerts=[fresh, held]))
    rows = list_rows(await get_view(served_alone, "feed", tier="alerts"))
    assert [row[3] for row in rows] == ["alert SHORT fired 2026-09-30 02:00 UTC", "alert LONG"]


@pytest.mark.clause("pages")
@pytest.mark.clause("17.2")
@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize("view", TOOLS)
async def test_a_form_has_a_field_for_every_argument_of_the_tool(served, view, is_member):
    page = await get_view(served, view, is_member=is_member)
    # The links between pages set the offset, and a page shows rows in one view only.
    assert list_field_names(page) == TOOLS[view][0].query.model_fields.keys() - {"offset", "view"}
    ids = {
        field["id"] for tag in ("input", "select") for field in page.find_all(tag) if "id" in field
    }
    assert ids == {label["for"] for label in page.find_all("label")}


@pytest.mark.clause("pages")
@pytest.mark.clause("17.3")
@pytest.mark.parametrize(("view", "query"), QUERIES)
async def test_the_json_of_a_view_is_what_rest_returns(served, view, query):
    shown = await served.get_page(f"/{view}.json?{urlencode(query)}", is_member=True)
    rest = await served.get_api(f"{TOOLS[view][1]}?{urlencode(query)}")
    assert (shown.status_code, shown.headers["content-type"]) == (200, "application/json")
    assert (shown.content, shown.headers["etag"]) == (rest.content, rest.headers["etag"])


@pytest.mark.clause("pages")
@pytest.mark.clause("17.4")
async def test_the_csv_of_a_view_has_its_rows_with_exact_instants(served):
    answer = await served.get_page("/feed.csv?tier=all&limit=4", is_member=True)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert 'filename="signals-feed.csv"' in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    signals = (await served.get_api("/signals?tier=all&limit=4")).json()["signals"]
    assert len(rows) == len(signals) == 4
    for row, signal in zip(rows, signals, strict=True):
        for name in ("id", "created_at", "ticker", "timeframe", "direction", "tier"):
            assert row[name] == signal[name]
        assert (row["from"], row["to"]) == tuple(signal["transition"].values())
        assert (float(row["price"]), row["source"]) == (signal["price"], "simulated")


@pytest.mark.clause("pages")
@pytest.mark.clause("17.4")
async def test_the_csv_of_flips_and_confluence_has_every_flip_and_vote(served):
    answer = await served.get_page("/flips.csv?timeframe=1h", is_member=True)
    flips = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["ticker"], row["indicator"], row["to"]) for row in flips] == [
        (group["ticker"], flip["indicator"], flip["to"])
        for group in (await served.get_api("/flips?timeframe=1h")).json()["groups"]
        for flip in group["flips"]
    ]
    answer = await served.get_page("/confluence.csv", is_member=True)
    votes = list(csv.DictReader(io.StringIO(answer.text)))
    results = (await served.get_api("/confluence")).json()["results"]
    assert len(votes) == len(results) > 0
    for row, result in zip(votes, results, strict=True):
        assert {id_: row[id_] for id_ in result["votes"]} == result["votes"]


@pytest.mark.clause("pages")
@pytest.mark.clause("17.4")
async def test_a_csv_cell_is_never_a_formula(served_alone: RunningService):
    names = ("=1+1", "+1", "-1", "@sum", "plain")
    facts = {"asset_class": "crypto", "timeframes": TIMEFRAMES}
    added = (CoveredAsset(ticker=f"T{n}", name=name, **facts) for n, name in enumerate(names))
    await publish_assets(served_alone, *ASSETS, *added)
    rows = [make_change(LATER + place, f"T{place}", "enzo", "1d", 1, 0) for place in range(5)]
    await served_alone.market.commit(make_batch(LATER, rows))
    answer = await served_alone.get_page("/flips.csv", is_member=True)
    read = {row["ticker"]: row["name"] for row in csv.DictReader(io.StringIO(answer.text))}
    assert [read[f"T{place}"] for place in range(5)] == ["'=1+1", "'+1", "'-1", "'@sum", "plain"]


@pytest.mark.clause("pages")
@pytest.mark.clause("17.5")
async def test_links_lead_to_newer_and_older_rows_and_keep_the_filters(served):
    every = (await served.get_api("/signals?tier=all&timeframe=1h")).json()["signals"]
    assert len(every) == 6
    seen: list[list[str]] = []
    address = "/feed?tier=all&timeframe=1h&limit=2"
    while len(seen) < len(every):
        page = check_page(await served.get_page(address, is_member=True), 200, "Feed")
        before = len(seen)
        seen += list_rows(page)
        paging = [link for link in page.links if link.startswith("./feed?")]
        newer = [before - 2] if before else []
        older = [before + 2] if len(seen) < len(every) else []
        assert [_get_offset(link) for link in paging] == newer + older
        assert all("tier=all&timeframe=1h&limit=2" in link for link in paging)
        address = urljoin("/feed", paging[-1])
    assert [row[0].split()[0] for row in seen] == [row["ticker"] for row in every]


def _get_offset(address: str) -> int:
    return int(parse_qs(urlsplit(address).query).get("offset", ["0"])[0])


@pytest.mark.clause("pages")
async def test_a_form_keeps_the_chosen_values(served):
    page = await get_view(
        served,
        "feed",
        tier="all",
        ticker="btc",
        indicator="Trend Oracle",
        since="2026-09-29",
        limit="7",
    )
    assert {
        "ticker": "btc",
        "since": "2026-09-29T00:00",
        "limit": "7",
    }.items() <= page.fields.items()
    assert {option["value"] for option in page.find_all("option") if "selected" in option} == {
        *("all", "trend_oracle", "", "newest"),
    }
    (more,) = [one for one in page.find_all("details") if "class" not in one]
    assert "open" in more


@pytest.mark.clause("pages")
async def test_a_time_of_a_browsers_field_is_in_utc(served):
    local, exact = "2026-09-30T12:03:00.002", "2026-09-30T12:03:00.002Z"
    page = await get_view(served, "feed", since=local)
    assert list_rows(page) == list_rows(await get_view(served, "feed", since=exact)) != []
    assert page.fields["since"] == local


@pytest.mark.clause("pages")
@pytest.mark.clause("17.6")
@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize(
    ("view", "name", "value", "text"),
    [
        ("feed", "timeframe", "5h", '"5h" is not accepted; accepted: 1h, 4h, 1d.'),
        ("feed", "limit", "0", "0 is not accepted; accepted: an integer from 1 to 200"),
        ("feed", "since", "someday", '"someday" is not accepted; accepted: an ISO 8601 instant'),
        ("feed", "indicator", "cere", '"cere" is not an indicator; accepted: trend_oracle'),
        ("flips", "hours", "99", "99 is not accepted; accepted: an integer from 1 to 72."),
        ("confluence", "min_agree", "9", "9 is not accepted; accepted: an integer from 1 to 6."),
    ],
)
async def test_a_bad_filter_gets_its_error_at_the_field(served, view, name, value, text, is_member):
    page = await get_view(served, view, text, status=400, is_member=is_member, **{name: value})
    controls = page.find_all("input") + page.find_all("select")
    (field,) = [one for one in controls if one.get("aria-invalid") == "true"]
    assert field["name"] == name
    assert field["aria-describedby"] in page.ids
    options = [one["value"] for one in page.find_all("option") if "selected" in one]
    assert value == field.get("value") or value in options
    assert not list_rows(page)


@pytest.mark.clause("pages")
@pytest.mark.clause("17.6")
async def test_every_bad_filter_is_named_at_once(served):
    problem = 'Unknown "BTCC" (did you mean BTC (Bitcoin)?)'
    page = await get_view(
        served, "feed", problem, status=400, ticker="BTCC", timeframe="5h", since="never"
    )
    assert len([one for one in page.elements if one[1].get("aria-invalid")]) == 3


@pytest.mark.clause("pages")
async def test_limits_that_depend_on_others_are_named(served):
    for view, sent, text in (
        ("flips", {"timeframe": "1h", "hours": "7"}, "7 is above the maximum of 6 for timeframe"),
        ("confluence", {"as_of": "2020-01-01"}, "accepted: 2025-09-30T12:03"),
        ("feed", {"offset": "-1"}, "There is no such page."),
    ):
        await get_view(served, view, text, status=400, **sent)
    # An argument without a field in the form.
    answer = await served.get_page("/confluence?view=bogus", is_member=True)
    check_page(answer, 400, "Confluence", 'view: "bogus" is not accepted')


@pytest.mark.clause("pages")
@pytest.mark.clause("17.7")
async def test_an_empty_page_links_to_views_with_one_filter_changed(served):
    sent = {"ticker": "XAU", "timeframe": "1h", "direction": "bearish"}
    page = await get_view(served, "feed", "No change or alert matches.", **sent)
    assert not list_rows(page)
    offered = [link for link in page.links if "feed?" in link and "ticker" not in link]
    assert len(offered) == 1
    answer = await served.get_page(urljoin("/feed", offered[0]), is_member=True)
    assert list_rows(check_page(answer, 200, "Feed"))
    page = await get_view(
        served, "confluence", min_agree="6", direction="bearish", asset_class="crypto"
    )
    offered = [link for link in page.links if "confluence?" in link]
    # NVDA is bearish, and so is no crypto asset.
    assert {parse_qs(urlsplit(link).query).get("asset_class", [""])[0] for link in offered} == {
        "",
        "crypto",
    }
    for link in offered:
        answer = await served.get_page(urljoin("/confluence", link), is_member=True)
        assert list_rows(check_page(answer, 200, "Confluence")), link


@pytest.mark.clause("pages")
@pytest.mark.clause("17.7")
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"ticker": "matic"}, "MATIC was removed on 2026-09-27 and continues as POL;"),
        ({"ticker": "DARK"}, "DARK"),
        ({"ticker": "NVDA", "tier": "alerts"}, "No alert engine follows this ticker"),
        ({"indicator": "PerpKit"}, "Changes of perpkit are not logged on the universe tier"),
    ],
)
async def test_an_empty_feed_says_why_no_row_can_match(served, query, reason):
    await get_view(served, "feed", reason, "No change or alert matches", **query)


@pytest.mark.clause("pages")
async def test_a_page_beyond_the_last_links_to_the_first(served):
    page = await get_view(served, "feed", timeframe="1h", offset="900")
    assert any(link.endswith("feed?timeframe=1h") for link in page.links)


@pytest.mark.clause("pages", "fresh", "17.9")
async def test_times_are_relative_and_exact_and_a_stale_view_says_so(served_alone: RunningService):
    served_alone.clock.now = NOON + 5 * 60_000
    runs = list_runs(await get_view(served_alone, "feed"))
    assert runs[0].startswith("2026-09-30 12:03 UTC 4 min ago")  # Some ms after 12:03.
    served_alone.clock.now = NOON + 47 * HOUR_MS
    page = await get_view(served_alone, "feed", "An update is overdue")
    assert "46 h ago" in list_runs(page)[0]
    served_alone.clock.now = NOON + 72 * HOUR_MS + 1000
    assert "3 d ago" in list_runs(await get_view(served_alone, "feed"))[0]


ATOM = {"a": "http://www.w3.org/2005/Atom"}


def read_atom(answer: httpx.Response) -> ET.Element:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/atom+xml"
    return ET.fromstring(answer.text)


@pytest.mark.clause("17.10")
async def test_each_view_of_the_feed_is_an_atom_feed_for_members_and_keys(served: RunningService):
    query = "ticker=BTC&timeframe=1h"
    before = await served.get_api(f"/signals?{query}")
    rows = before.json()["signals"]
    page = await get_view(served, "feed", ticker="BTC", timeframe="1h")
    assert f"./feed.atom?{query}" in page.links
    password = b64encode(f"reader:{served.api_key}".encode()).decode()
    answers = [await served.get_page(f"/feed.atom?{query}", is_member=True)]
    # A feed needs the rows, which the other view has not.
    for sent in (f"Bearer {served.api_key}", f"Basic {password}"):
        answers.append(
            await served.client.get(
                f"/feed.atom?{query}&view=lines", headers={"Authorization": sent}
            )
        )
        assert int(answers[-1].headers["x-ratelimit-remaining"]) > 0
    for answer in answers:
        feed = read_atom(answer)
        ids = [one.text or "" for one in feed.findall("a:entry/a:id", ATOM)]
        assert [id_.partition(":")[2].partition(":")[2] for id_ in ids] == [r["id"] for r in rows]
        assert [one.text for one in feed.findall("a:entry/a:updated", ATOM)] == [
            row["created_at"] for row in rows
        ]
        assert feed.findtext("a:id", "", ATOM) == f"{served.base_url}/feed?{query}"
        title = feed.findtext("a:entry/a:title", "", ATOM)
        change = rows[0]["transition"]
        assert title == f"BTC Bitcoin: Trend Oracle 1h {change['from']} → {change['to']} at 101.50"
    after = await served.get_api("/usage")
    left = [int(answer.headers["x-ratelimit-remaining"]) for answer in (before, after)]
    assert left[0] - left[1] == 3  # Both polls with the key, and the last call.
    # A feed's form of the key opens no endpoint, not even after it was used.
    basic = {"Authorization": f"Basic {password}"}
    await fetch(served.client, "GET", "/api/v1/usage", 401, headers=basic)


@pytest.mark.clause("17.10")
@pytest.mark.parametrize(
    ("authorization", "status"),
    [("Bearer ek_unknown", 401), ("Basic cmVhZGVyOmVrX3g=", 401), ("Basic !", 401), (None, 200)],
)
async def test_without_a_live_key_an_atom_feed_is_refused_or_the_sample(
    served: RunningService, authorization: str | None, status: int
):
    headers = {"Authorization": authorization} if authorization else {}
    answer = await fetch(served.client, "GET", "/feed.atom?timeframe=1h", status, headers=headers)
    if authorization is None:
        feed = read_atom(answer)
        assert "Sample, not live data" in feed.findtext("a:title", "", ATOM)
        titles = [one.text or "" for one in feed.findall("a:entry/a:title", ATOM)]
        assert titles
        assert all(" 1h " in title for title in titles)
    else:
        assert answer.json()["error"] == "invalid_key"


@pytest.mark.clause("17.11")
async def test_flips_fold_the_assets_that_only_went_neutral(served_alone: RunningService):
    rows = [
        make_change(LATER, "BTC", "ceres", "1h", 1, 0),
        make_change(LATER + 1, "ETH", "ceres", "1h", 0, 1),
        make_change(LATER + 2, "NVDA", "ceres", "1h", 0, -1),
    ]
    await served_alone.market.commit(make_batch(LATER, rows))
    served_alone.clock.now = LATER
    page = await get_view(served_alone, "flips", timeframe="1h", hours="1")
    (folded,) = [one for one in page.find_all("details") if one.get("class") == "calmed"]
    assert ("open" in folded, "1 asset that only went neutral" in page.text) == (False, True)
    assert [row[0].split()[0] for row in list_rows(page)] == ["ETH", "BTC", "NVDA"]


@pytest.mark.clause("17.11")
async def test_the_feed_has_a_heading_for_each_run(served_alone: RunningService):
    rows = [
        make_change(LATER + n, "BTC", id_, "1h", 1, 0) for n, id_ in enumerate(("ceres", "enzo"))
    ]
    await served_alone.market.commit(make_batch(LATER, rows))
    runs = list_runs(await get_view(served_alone, "feed", limit="3"))
    assert [(run[:16], run.split()[-2]) for run in runs] == [
        ("2026-09-30 13:03", "2"),
        ("2026-09-30 12:03", "1"),
    ]


@pytest.mark.clause("pages")
async def test_a_view_shows_the_same_call_for_agents(served):
    page = await get_view(
        served,
        "flips",
        'signals_get_flips {"timeframe": "1h", "hours": 2}',
        f"'{served.base_url}/api/v1/flips?timeframe=1h&hours=2'",
        timeframe="1h",
        hours="2",
        utm_source="letter",
    )
    assert "utm_source" not in page.text


@pytest.mark.clause("pages")
@pytest.mark.clause("1.38")
@pytest.mark.parametrize("view", TOOLS)
async def test_visitors_see_a_labelled_sample_and_the_same_whatever_is_stored(
    served_alone: RunningService, view: str
):
    async def see() -> list[str]:
        paths = [f"/{view}?{urlencode(query)}" for name, query in QUERIES if name == view]
        paths += [f"/{view}{ending}" for ending in (".csv", ".json")]
        answers = [await served_alone.get_page(path) for path in paths]
        return [re.sub(r'data-now="\d+"', "", answer.text) for answer in answers]

    before = await see()
    assert "Sample, not live data" in before[0]
    assert '"source":"sample"' in before[-1]
    assert "sample" in before[-2]
    await served_alone.market.commit(
        make_batch(LATER, [make_change(LATER, "BTC", "enzo", "1d", -1, 1)])
    )
    assert await see() == before


@pytest.mark.clause("pages")
async def test_the_whole_sample_feed_is_the_published_sample(served):
    shown = await served.get_page("/feed.json?tier=all")
    assert shown.content == (await served.client.get("/api/v1/signals/sample")).content
    page = await served.get_page("/feed?tier=all")
    for name in ("content-security-policy", "referrer-policy", "x-content-type-options"):
        assert shown.headers[name] == page.headers[name]


@pytest.mark.clause("pages", "16.5", "17.10")
async def test_a_file_of_a_bad_view_is_the_error_of_rest(served):
    answers = [
        await served.get_page(f"/{file}?timeframe=5h", is_member=True)
        for file in ("feed.csv", "feed.json", "feed.atom", "board.csv", "board.json")
    ]
    answers.append(await served.client.get("/feed.atom?timeframe=5h", headers=served.key_headers))
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]) == (400, "invalid_parameter")


@pytest.mark.clause("pages")
@pytest.mark.clause("17.8")
async def test_a_viewer_with_too_many_requests_in_progress_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("serving.fair_share.MAX_WAIT_S", 0.0)
    fair_share = FairShare(max_calls=1)
    async with run_service(tmp_path, make_coverage(), fair_share=fair_share) as busy:
        (email,) = re.findall(r"[\w-]+viewer@example\.com", (await get_view(busy, "feed")).text)
        places = await fair_share.take_place(email)
        for view in TOOLS:
            answer = await busy.get_page(f"/{view}", is_member=True)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        # The calls with a key go on.
        assert (await busy.get_api("/signals")).status_code == 200
        places.release()
        assert list_rows(await get_view(busy, "feed"))


@pytest.mark.clause("pages", "17.10")
async def test_names_and_values_are_escaped(served_alone: RunningService):
    name = "<script>alert('x')</script>\"&"
    asset = CoveredAsset(ticker="B&C", name=name, asset_class="crypto", timeframes=TIMEFRAMES)
    await publish_assets(served_alone, *ASSETS, asset)
    await served_alone.market.commit(
        make_batch(LATER, [make_change(LATER, "B&C", "enzo", "1d", 1, 0)])
    )
    page = await get_view(served_alone, "flips")
    assert f"B&C {name}" in [row[0] for row in list_rows(page)]
    assert any(link.endswith("assets/B%26C?timeframe=1d") for link in page.links)
    feed = read_atom(await served_alone.get_page("/feed.atom", is_member=True))
    assert feed.findtext("a:entry/a:title", "", ATOM).startswith(f"B&C {name}: Enzo 1d ")
    bad = await get_view(served_alone, "feed", status=400, ticker='"><script>')
    assert bad.fields["ticker"] == '"><script>'
    assert all(script["src"] for script in page.find_all("script") + bad.find_all("script"))


@pytest.mark.clause("pages")
@pytest.mark.prove
async def test_a_full_page_with_its_files_is_small(served_alone: RunningService):
    cells = list(itertools.product(("BTC", "ETH", "NVDA"), NAMES, TIMEFRAMES))
    for run, after in ((1, -1), (2, 1), (3, -1), (4, 1)):
        later = NOON + run * HOUR_MS
        rows = [
            make_change(later, *cell, after, -after)._replace(created_at=later + place)
            for place, cell in enumerate(cells)
        ]
        await served_alone.market.commit(make_batch(later, rows))
    answer = await served_alone.get_page("/feed?limit=200", is_member=True)
    page = check_page(answer, 200, "Feed")
    assert len(list_rows(page)) == 200
    files = await read_page_files(served_alone, page)
    assert len(answer.content) + sum(map(len, files.values())) < MAX_BYTES


async def find_rows(served: RunningService) -> list[str]:
    path = "/signals?ticker=BTC&timeframe=1h&tier=all"
    return [row["id"] for row in (await served.get_api(path)).json()["signals"]]


@pytest.mark.clause("21.14")
async def test_each_listed_change_leads_to_the_proof_that_a_key_gets(
    served: RunningService,
) -> None:
    page = Page(await served.get_page("/assets/BTC?timeframe=1h", is_member=True))
    links = [link for link in page.links if link.startswith("../log/row?id=")]
    ids = await find_rows(served)
    assert links == [f"../log/row?id={row_id}" for row_id in ids]
    for link, row_id in zip(links, ids, strict=True):
        answer = await served.get_page(link.removeprefix(".."), is_member=True)
        shown = await served.get_page(f"/log/proof?id={row_id}", is_member=True)
        told = (f'"id": "{row_id}"', shown.text)
        check_page(answer, 200, "Proof of a row", *told, links=[f"../log/proof?id={row_id}"])
        headers = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
        assert shown.headers.items() >= headers.items()
        assert shown.text == (await served.get_api(f"/log/proof?id={row_id}")).text


@pytest.mark.clause("pages")
async def test_everybody_sees_the_line_of_the_log_to_compare(served: RunningService) -> None:
    size, root = (await served.get_api("/log/checkpoint")).text.split()[1:3]
    page = check_page(await served.get_page("/log"), 200, "Log of the feed", f"{size} {root}")
    assert page.fields["key"] in (await served.get_api("/log/key")).text


@pytest.mark.clause("21.14")
async def test_proofs_are_for_members_and_the_owner(served_alone: RunningService) -> None:
    (row_id, *_) = await find_rows(served_alone)
    proof = f"/log/proof?id={row_id}"
    async with open_owner_browser(served_alone) as client:
        assert (await client.get(proof)).text.startswith("c2sp.org/tlog-proof@v1\n")
    async with open_new_member(served_alone) as browser:
        (held,) = await served_alone.access.list_memberships_by_email(EMAIL.lower())
        await served_alone.access.end_membership(held, served_alone.clock(), "the test")
        answer = await browser.client.get(proof)
    assert (answer.status_code, "c2sp.org" in answer.text) == (403, False)
    # Visitors sign in first, and see no link on samples.
    for path in (proof, f"/log/row?id={row_id}"):
        answer = await served_alone.get_page(path)
        assert answer.status_code == 303
        assert urlsplit(answer.headers["location"]).path.endswith("sign-in")
    sample = Page(await served_alone.get_page("/assets/BTC?timeframe=1h"))
    assert not [link for link in sample.links if "../log/" in link]


@pytest.mark.clause("21.14")
async def test_an_unknown_row_is_an_error_page(served: RunningService) -> None:
    answer = await served.get_page("/log/proof?id=BTC", is_member=True)
    assert (answer.status_code, "text/html" in answer.headers["content-type"]) == (400, True)
    assert "is not the id of a published row" in answer.text
