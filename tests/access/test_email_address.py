"""Accepted e-mail addresses, their normalized form, and refused ones."""

import pytest

from access.contact import parse_contact_email
from schemas.errors import ApiError

pytestmark = pytest.mark.clause("sales")


@pytest.mark.clause("4.11.2")
@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("agent@example.com", "agent@example.com"),
        ("Agent.Smith+signals@Mail.Example.COM", "Agent.Smith+signals@mail.example.com"),
        ("jos\u0065\u0301@example.com", "jos\u00e9@example.com"),
        ("agent@b\u00fccher.example.com", "agent@b\u00fccher.example.com"),
    ],
)
@pytest.mark.parametrize("takes_special_use", [True, False])
def test_an_address_is_normalized(given: str, taken: str, takes_special_use: bool) -> None:
    assert parse_contact_email(given, accepts_special_use=takes_special_use) == taken


@pytest.mark.clause("4.11.2", "4.13.9", "7.14")
@pytest.mark.parametrize(
    "given",
    [
        "",
        " ",
        "agent",
        "@example.com",
        "agent@",
        "a@b@example.com",
        "agent@example..com",
        "agent@-example.com",
        "agent@example.com\n",
        " agent@example.com",
        "agent@example.com, other@example.com",
        "Agent <agent@example.com>",
        "agent\x00@example.com",
        "agent@exam\u202eple.com",
        "agent@[192.0.2.1]",
        "agent@[IPv6:2001:db8::1]",
        "agent@192.0.2.1",
        "agent@localhost",
        "agent@test",
        "a@b",
        "agent@example.c",
        "agent@example.1",
        "x" * 65 + "@example.com",
        "a@" + "b." * 126 + "com",
        "ct_" + "A" * 43,
    ],
)
@pytest.mark.parametrize("takes_special_use", [True, False])
def test_an_invalid_address_is_refused_without_being_quoted(
    given: str, takes_special_use: bool
) -> None:
    with pytest.raises(ApiError) as refused:
        parse_contact_email(given, accepts_special_use=takes_special_use)
    error = refused.value
    assert (error.code, error.status) == ("invalid_parameter", 400)
    assert error.message.startswith("contact_email: is not a valid e-mail address")
    assert error.message.endswith("accepted: one address such as agent@example.com.")
    assert error.message.isprintable()
    assert len(given) < 40 or given not in error.message


@pytest.mark.parametrize(
    "given",
    ["agent@shop.localhost", "agent@shop.test", "agent@x.invalid", "agent@Host.LOCAL", "a@b.onion"],
)
def test_a_special_use_address_is_accepted_without_real_money(given: str) -> None:
    local, _, domain = given.partition("@")
    assert parse_contact_email(given, accepts_special_use=True) == f"{local}@{domain.lower()}"
    with pytest.raises(ApiError) as refused:
        parse_contact_email(given, accepts_special_use=False)
    assert refused.value.status == 400


@pytest.mark.parametrize("given", ["agent@", "a b@shop.test", "agent@.test", "a@-.localhost"])
def test_a_special_domain_excuses_nothing_else(given: str) -> None:
    with pytest.raises(ApiError):
        parse_contact_email(given, accepts_special_use=True)
