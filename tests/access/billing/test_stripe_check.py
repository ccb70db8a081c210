"""The check of the operator's Stripe settings before anything is sold."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from access.billing.provider import BillingError, BillingSetupError, Order
from tests.doubles.stripe.server import StripeDouble, run_stripe_double
from tests.support.running_service import ManualClock
from tests.support.stripe_shop import StripeShop, create_billing

pytestmark = pytest.mark.clause("sales")

ORDER = Order("c1", "agent@example.com", "monthly", None)


@pytest.fixture
async def stripe() -> AsyncIterator[StripeDouble]:
    async with run_stripe_double(ManualClock()) as double:
        yield double


async def get_price_error(stripe: StripeDouble, **changed: Any) -> str:
    billing = create_billing(stripe, ManualClock(), **changed)
    try:
        with pytest.raises(BillingSetupError) as refused:
            await billing.check_prices()
    finally:
        await billing.close()
    text = str(refused.value)
    assert "\n" not in text
    return text


@pytest.mark.clause("5.19")
@pytest.mark.parametrize(
    ("api_key", "mode"),
    [
        ("sk_test_51a", "test"),
        ("rk_test_51a", "test"),
        ("sk_live_51a", "live"),
        ("rk_live_51a", "live"),
    ],
)
async def test_the_mode_is_the_keys(stripe: StripeDouble, api_key: str, mode: str) -> None:
    billing = create_billing(stripe, ManualClock(), api_key=api_key)
    assert billing.mode == mode
    await billing.close()


@pytest.mark.clause("5.19")
async def test_a_live_key_sells_at_no_price_of_test_mode() -> None:
    async with run_stripe_double(ManualClock(), livemode=True) as live:
        live.books.objects["price_monthly"]["livemode"] = False
        text = await get_price_error(live)
    assert "price_monthly (monthly): livemode is False, expected True" in text
    assert "price_yearly" not in text


@pytest.mark.parametrize("api_key", ["pk_test_51a", "sk_51a", "", "sk_test_", " sk_test_51a\n"])
def test_a_malformed_key_is_refused_without_being_quoted(
    stripe: StripeDouble, api_key: str
) -> None:
    with pytest.raises(BillingSetupError, match="sk_test_, rk_test_, sk_live_ or rk_live_") as bad:
        create_billing(stripe, ManualClock(), api_key=api_key)
    assert "51a" not in str(bad.value)


async def test_matching_prices_are_accepted(stripe: StripeDouble) -> None:
    billing = create_billing(stripe, ManualClock())
    await billing.check_prices()
    await billing.close()
    assert [request.path for request in stripe.requests] == [
        "prices/price_monthly",
        "prices/price_yearly",
    ]


@pytest.mark.clause("5.15", "5.20")
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"unit_amount": 99_00}, "unit_amount is 9900, expected 12900"),
        ({"currency": "eur"}, "currency is eur, expected usd"),
        ({"active": False}, "active is False, expected True"),
        ({"livemode": True}, "livemode is True, expected False"),
        ({"recurring": None, "type": "one_time"}, "it is not recurring"),
    ],
)
async def test_a_differing_price_is_named_with_the_expected_value(
    stripe: StripeDouble, changed: dict[str, Any], expected: str
) -> None:
    stripe.books.objects["price_monthly"] |= changed
    text = await get_price_error(stripe)
    assert f"price_monthly (monthly): {expected}" in text
    assert "price_yearly" not in text


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"interval": "month"}, "interval is month, expected year"),
        ({"interval_count": 2}, "interval_count is 2, expected 1"),
        ({"usage_type": "metered"}, "usage_type is metered, expected licensed"),
    ],
)
async def test_a_price_must_recur_as_the_plan_does(
    stripe: StripeDouble, changed: dict[str, Any], expected: str
) -> None:
    stripe.books.objects["price_yearly"]["recurring"] |= changed
    assert f"price_yearly (yearly): {expected}" in await get_price_error(stripe)


async def test_a_price_that_stripe_does_not_know_is_named(stripe: StripeDouble) -> None:
    prices = {"monthly": "price_gone", "yearly": "price_yearly"}
    assert "price_gone (monthly): is unknown to Stripe" in await get_price_error(
        stripe, prices=prices
    )


async def test_a_key_that_stripe_rejects_is_not_quoted(stripe: StripeDouble) -> None:
    text = await get_price_error(stripe, api_key="sk_test_51OtherKey")
    assert "SIGNALS_STRIPE_API_KEY (HTTP 401)" in text
    assert "Other" not in text


async def test_a_failure_of_stripe_is_not_reported_as_a_wrong_setting(stripe: StripeDouble) -> None:
    billing = create_billing(stripe, ManualClock())
    stripe.fail(503)
    with pytest.raises(BillingError, match="APIError, HTTP 503, req_double"):
        await billing.check_prices()
    await billing.close()


async def test_nothing_is_sold_until_the_prices_were_checked(shop: StripeShop) -> None:
    price = shop.stripe.books.objects["price_monthly"]
    price["unit_amount"] = 1
    refused = await shop.post_checkout()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "30")
    assert shop.stripe.sessions() == []
    price["unit_amount"] = 129_00
    assert (await shop.post_checkout()).status_code == 201


async def test_prices_are_checked_once_before_sales(shop: StripeShop) -> None:
    await shop.billing.check_prices()
    await shop.open_checkout()
    await shop.open_checkout()
    resources = [request.path.partition("/")[0] for request in shop.stripe.requests]
    assert resources == ["prices", "prices", "checkout", "checkout"]
