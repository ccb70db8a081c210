"""The proxies of the environment, as other programs read them: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY.

Each client gets its proxy from here, so that all of them decide and fail alike.
"""

import os
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from service.config.settings import SettingsError
from store.addresses import is_loopback

SOCKS_SCHEMES = frozenset({"socks5", "socks5h"})


def find_proxy(address: str, *, allows_socks: bool = True) -> tuple[str, str] | None:
    """Return the variable that names the proxy to an address, and the proxy's own address.

    Return None if there is none, as for hosts in NO_PROXY and for this machine, which no proxy
    reaches. SettingsError for a proxy that cannot be used; the message quotes no password.
    """
    parts = urlsplit(address)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host):
        return None
    names = (f"{parts.scheme}_proxy", "all_proxy")
    variables = [each for name in names for each in (name, name.upper()) if os.environ.get(each)]
    if not variables:
        return None
    variable, proxy = variables[0], os.environ[variables[0]]
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    kind = proxy.partition("://")[0].lower()
    remedy = f"set {parts.scheme.upper()}_PROXY to an http:// proxy, or unset {variable}"
    if kind in SOCKS_SCHEMES and not allows_socks:
        raise SettingsError(
            f"{variable} names a SOCKS proxy, which venues do not support: {remedy}"
        )
    if kind in SOCKS_SCHEMES and find_spec("socksio") is None:
        raise SettingsError(
            f"{variable} names a SOCKS proxy, which needs the package socksio: install it "
            f"(pip install socksio), {remedy}"
        )
    try:
        is_usable = bool(urlsplit(proxy).hostname) and urlsplit(proxy).port != 0
    except ValueError:
        is_usable = False
    if not is_usable or kind not in {"http", "https", *SOCKS_SCHEMES}:
        raise SettingsError(
            f"{variable} is not the address of a proxy, such as http://HOST:PORT or "
            f"socks5://HOST:PORT: correct it, {remedy}"
        )
    return variable, proxy
