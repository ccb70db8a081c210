"""The address of a service, as the commands that call it parse it."""

import httpx2

from schemas.errors import OperatorError
from verifier.client import API_PATH, MCP_PATH


class AddressError(OperatorError):
    """An address that the operator must fix. The message never repeats it: it may hold a secret."""


def parse_base_address(text: str, option: str) -> str:
    """Return the base address of a service, given with or without /api/v1 or its MCP endpoint."""
    address = text.strip().rstrip("/")
    for path in (MCP_PATH, API_PATH):
        address = address.removesuffix(path).rstrip("/")
    try:
        parts = httpx2.URL(address)
    except httpx2.InvalidURL as error:
        raise AddressError(f"{option} is not a valid address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.host or (parts.port or 0) > 65535:
        raise AddressError(f"{option} must be an http:// or https:// address")
    if parts.userinfo or parts.query or parts.fragment:
        raise AddressError(f"{option} must be an address without user name, query and fragment")
    return address
