"""The prices and purchase steps that errors about keys contain."""

import pytest

from access.billing.provider import describe_purchase

pytestmark = pytest.mark.clause("sales")


@pytest.mark.clause("4.11.4", "5.12", "5.14", "5.15", "7.6", "7.7", "8.47", "8.48")
def test_the_purchase_flow_names_absolute_addresses_and_prices() -> None:
    flow = describe_purchase("https://signals.example/")
    assert flow.plan == "premium"
    assert flow.price_usd == {"monthly": 129, "yearly": 1199}
    checkout, pay, claim = flow.steps
    assert checkout.startswith("POST https://signals.example/api/v1/access/checkout")
    assert '{"contact_email": "<EMAIL>"}' in checkout
    assert "checkout_url" in pay
    assert claim.startswith("POST https://signals.example/api/v1/access/claim")
    assert "every 10 seconds for up to 5 minutes" in claim
