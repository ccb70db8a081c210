"""Asset pages link each listed change to its proof, which signed-in members can open."""

from urllib.parse import urlsplit

import pytest

from tests.support.running_service import RunningService
from tests.support.shared_service import served as served
from tests.support.web_member import EMAIL, buy_plan, open_member_browser, open_owner_browser
from tests.support.web_page import Page

pytestmark = pytest.mark.clause("21.14")

ROW = "universe.BTC.trend_oracle.1h.1790740800.1"


async def find_rows(served: RunningService) -> list[str]:
    """Return the ids of the rows on the page of BTC."""
    path = "/signals?ticker=BTC&timeframe=1h&tier=all"
    return [row["id"] for row in (await served.get_api(path)).json()["signals"]]


async def test_each_listed_change_leads_to_the_proof_that_a_key_gets(
    served: RunningService,
) -> None:
    page = Page(await served.get_page("/assets/BTC?timeframe=1h", is_member=True))
    links = [link for link in page.links if link.startswith("../log/proof?id=")]
    ids = await find_rows(served)
    assert links == [f"../log/proof?id={row_id}" for row_id in ids]
    for link, row_id in zip(links, ids, strict=True):
        shown = await served.get_page(link.removeprefix(".."), is_member=True)
        assert shown.headers["content-type"] == "text/plain; charset=utf-8"
        assert shown.headers["cache-control"] == "no-store"
        assert shown.text == (await served.get_api(f"/log/proof?id={row_id}")).text


async def test_the_owner_sees_proofs_too(served_alone: RunningService) -> None:
    (row_id, *_) = await find_rows(served_alone)
    async with open_owner_browser(served_alone) as client:
        shown = await client.get(f"/log/proof?id={row_id}")
        assert shown.text.startswith("c2sp.org/tlog-proof@v1\n")


async def test_visitors_sign_in_first_and_see_no_link_on_samples(served: RunningService) -> None:
    answer = await served.get_page(f"/log/proof?id={ROW}")
    assert answer.status_code == 303
    assert urlsplit(answer.headers["location"]).path.endswith("sign-in")
    sample = Page(await served.get_page("/assets/BTC?timeframe=1h"))
    assert not [link for link in sample.links if "log/proof" in link]


async def test_a_viewer_without_a_plan_gets_no_proof(served_alone: RunningService) -> None:
    await buy_plan(served_alone)
    async with open_member_browser(served_alone) as browser:
        (held,) = await served_alone.access.list_memberships_by_email(EMAIL.lower())
        await served_alone.access.end_membership(
            held.row, served_alone.clock(), "the test ended it"
        )
        answer = await browser.client.get(f"/log/proof?id={ROW}")
    assert answer.status_code == 403
    assert "c2sp.org" not in answer.text


async def test_an_unknown_row_is_an_error_page(served: RunningService) -> None:
    answer = await served.get_page("/log/proof?id=BTC", is_member=True)
    assert answer.status_code == 400
    assert "is not the id of a published row" in answer.text
    assert "text/html" in answer.headers["content-type"]
