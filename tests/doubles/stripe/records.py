"""The objects of a small Stripe, as documented in Stripe's public API reference.

Every change of an object adds an event, as at Stripe.
"""

from copy import deepcopy
from typing import Any, Literal

from schemas.vocabulary import Clock

Object = dict[str, Any]
Status = Literal["active", "trialing", "past_due", "canceled", "unpaid", "incomplete", "paused"]

DAY_S = 86_400
PERIOD_S = {"month": 30 * DAY_S, "year": 365 * DAY_S}
COLLECTIONS = {
    "billing_portal.configuration": "billing_portal/configurations",
    "charge": "charges",
    "checkout.session": "checkout/sessions",
    "customer": "customers",
    "dispute": "disputes",
    "event": "events",
    "price": "prices",
    "subscription": "subscriptions",
}


class StripeRecords:
    """Objects by id, oldest first; `clock` returns epoch ms. Tests can change objects in place.

    Methods take ids. Those that change an object return its event.
    """

    def __init__(self, clock: Clock, *, livemode: bool) -> None:
        self._clock = clock
        self.livemode = livemode
        self.objects: dict[str, Object] = {}
        self.line_items: dict[str, list[Object]] = {}
        self._made = 0

    def list_objects(self, kind: str, **fields: str) -> list[Object]:
        """Return the objects of a kind that have these field values, newest first."""
        return [
            each
            for each in reversed(self.objects.values())
            if each["object"] == kind and all(each.get(key) == fields[key] for key in fields)
        ]

    def add_price(self, id_: str, unit_amount: int, interval: str, **changed: Any) -> Object:
        recurring = {
            "interval": interval,
            "interval_count": 1,
            "meter": None,
            "trial_period_days": None,
            "usage_type": "licensed",
        }
        return self._add(
            "price",
            id_,
            active=True,
            billing_scheme="per_unit",
            currency="usd",
            product="prod_1",
            recurring=recurring,
            tiers_mode=None,
            type="recurring",
            unit_amount=unit_amount,
            **changed,
        )

    def open_session(self, given: Object, address: str) -> Object:
        """Open a Checkout Session; `address` is the base URL of its pay page."""
        item = given["line_items"][0]
        price, quantity = self.objects[item["price"]], int(item.get("quantity", 1))
        amount = price["unit_amount"] * quantity
        id_ = self._new_id("cs_live" if self.livemode else "cs_test")
        self.line_items[id_] = [
            {
                "id": self._new_id("li"),
                "object": "item",
                "amount_subtotal": amount,
                "amount_total": amount,
                "currency": price["currency"],
                "price": deepcopy(price),
                "quantity": quantity,
            }
        ]
        adaptive = given.get("adaptive_pricing", {}).get("enabled") == "true"
        return self._add(
            "checkout.session",
            id_,
            adaptive_pricing={"enabled": adaptive},
            amount_subtotal=amount,
            amount_total=amount,
            cancel_url=given.get("cancel_url"),
            client_reference_id=given.get("client_reference_id"),
            currency=price["currency"],
            customer=None,
            customer_details=None,
            customer_email=given.get("customer_email"),
            expires_at=self._now() + DAY_S,
            metadata=given.get("metadata", {}),
            mode=given["mode"],
            payment_status="unpaid",
            status="open",
            subscription=None,
            subscription_data=given.get("subscription_data", {}),
            success_url=given.get("success_url"),
            url=f"{address}/c/pay/{id_}",
        )

    def pay(self, session_id: str, *, is_delayed: bool = False) -> Object:
        """Submit the pay page; with a delayed method the payment arrives with `settle`."""
        session = self.objects[session_id]
        assert session["status"] == "open", session["status"]
        email = session["customer_email"]
        customer = self._add("customer", self._new_id("cus"), email=email, deleted=False)
        subscription = self._subscribe(session, customer["id"])
        session |= {
            "customer": customer["id"],
            "customer_details": {"email": email, "name": "A Buyer"},
            "status": "complete",
            "subscription": subscription["id"],
            "url": None,
        }
        if not is_delayed:
            self._take_money(session)
        return self.add_event("checkout.session.completed", session)

    def settle(self, session_id: str) -> Object:
        self._take_money(self.objects[session_id])
        return self.add_event("checkout.session.async_payment_succeeded", self.objects[session_id])

    def expire(self, session_id: str) -> Object:
        self.objects[session_id] |= {"status": "expired", "url": None}
        return self.add_event("checkout.session.expired", self.objects[session_id])

    def set_status(self, subscription_id: str, status: Status) -> Object:
        subscription = self.objects[subscription_id]
        was_paused = subscription["status"] == "paused"
        subscription["status"] = status
        verb = {"canceled": "deleted", "paused": "paused"}.get(
            status, "resumed" if was_paused else "updated"
        )
        if status == "canceled":
            subscription |= {"canceled_at": self._now(), "ended_at": self._now()}
        return self.add_event(f"customer.subscription.{verb}", subscription)

    def cancel_subscription(self, subscription_id: str) -> Object:
        return self.set_status(subscription_id, "canceled")

    def pause_collection(self, subscription_id: str) -> Object:
        """Pause the collection of payments, which leaves the status as it is."""
        subscription = self.objects[subscription_id]
        subscription["pause_collection"] = {"behavior": "void", "resumes_at": None}
        return self.add_event("customer.subscription.updated", subscription)

    def change_price(self, subscription_id: str, price: str) -> Object:
        subscription = self.objects[subscription_id]
        subscription["items"]["data"][0]["price"] = deepcopy(self.objects[price])
        return self.add_event("customer.subscription.updated", subscription)

    def close_dispute(self, dispute_id: str, status: str) -> Object:
        self.objects[dispute_id]["status"] = status
        return self.add_event("charge.dispute.closed", self.objects[dispute_id])

    def add_charge(self, customer: str, amount: int, *, is_paid: bool = True) -> Object:
        """Add a charge, as for each attempt to take the money of a period."""
        charge = self._add(
            "charge",
            self._new_id("ch"),
            amount=amount,
            amount_captured=amount,
            amount_refunded=0,
            captured=True,
            currency="usd",
            customer=customer,
            disputed=False,
            paid=is_paid,
            payment_intent=self._new_id("pi"),
            refunded=False,
            status="succeeded" if is_paid else "failed",
        )
        self.add_event("charge.succeeded" if is_paid else "charge.failed", charge)
        return charge

    def refund(self, charge_id: str, amount: int | None = None) -> Object:
        """Refund an amount in cents, or the rest of the charge if there is none."""
        charge = self.objects[charge_id]
        given_back = charge["amount"] - charge["amount_refunded"] if amount is None else amount
        charge["amount_refunded"] += given_back
        charge["refunded"] = charge["amount_refunded"] == charge["amount"]
        return self.add_event("charge.refunded", charge)

    def dispute(
        self, charge_id: str, status: str = "needs_response", case_type: str = "chargeback"
    ) -> Object:
        charge = self.objects[charge_id]
        charge["disputed"] = True
        dispute = self._add(
            "dispute",
            self._new_id("du"),
            amount=charge["amount"],
            charge=charge["id"],
            currency=charge["currency"],
            payment_intent=charge["payment_intent"],
            payment_method_details={"card": {"brand": "visa", "case_type": case_type}},
            reason="fraudulent",
            status=status,
        )
        return self.add_event("charge.dispute.created", dispute)

    def open_portal(self, customer: Object, return_url: str | None, address: str) -> Object:
        id_ = self._new_id("bps")
        return self._add(
            "billing_portal.session",
            id_,
            customer=customer["id"],
            return_url=return_url,
            url=f"{address}/p/session/{id_}",
        )

    def add_event(self, kind: str, about: Object) -> Object:
        return self._add(
            "event",
            self._new_id("evt"),
            api_version="2026-10-28.endive",
            data={"object": deepcopy(about)},
            pending_webhooks=1,
            request={"id": None, "idempotency_key": None},
            type=kind,
        )

    def _take_money(self, session: Object) -> None:
        session["payment_status"] = "paid"
        self.add_charge(session["customer"], session["amount_total"])

    def _subscribe(self, session: Object, customer: str) -> Object:
        price, now = self.line_items[session["id"]][0]["price"], self._now()
        end = now + PERIOD_S[price["recurring"]["interval"]]
        item = {
            "id": self._new_id("si"),
            "object": "subscription_item",
            "current_period_end": end,
            "current_period_start": now,
            "price": deepcopy(price),
            "quantity": 1,
        }
        subscription = self._add(
            "subscription",
            self._new_id("sub"),
            cancel_at=None,
            cancel_at_period_end=False,
            canceled_at=None,
            pause_collection=None,
            customer=customer,
            ended_at=None,
            items={"object": "list", "data": [item], "has_more": False, "url": "/v1/items"},
            metadata=session["subscription_data"].get("metadata", {}),
            status="active",
        )
        self.add_event("customer.subscription.created", subscription)
        return subscription

    def _add(self, kind: str, id_: str, **fields: Any) -> Object:
        made = {"id": id_, "object": kind, "created": self._now(), "livemode": self.livemode}
        self.objects[id_] = made | {"metadata": {}} | fields
        return self.objects[id_]

    def _new_id(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}_{self._made:06d}"

    def _now(self) -> int:
        return self._clock() // 1000
