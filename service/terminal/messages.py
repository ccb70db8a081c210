"""Sends rows of the feed to people, as messages of the services that Apprise knows."""

import logging
import re
from collections.abc import Sequence

from schemas.errors import OperatorError
from schemas.version import describe_install
from service.terminal.deliveries import RefusalError, is_refusal, quote_receiver
from service.terminal.views import FEED, list_marks
from verifier.client import Json, TransientError

# How Apprise logs the status of an answer, or the code of ntfy that begins with it.
STATUS = re.compile(r"\berror=(\d{3})")
# How it logs the body, in quotes.
WORDS = re.compile(r"""Response Details:\s*b?['"]?(.*?)['"]?$""", re.DOTALL)


class Messenger:
    """Sends rows as one message to an address of Apprise, such as ntfys://ntfy.sh/TOPIC."""

    def __init__(self, address: str) -> None:
        """Raise OperatorError, which does not repeat the address, if it cannot be used."""
        try:
            # Only here, because the library is an extra.
            import apprise
        except ImportError as error:
            raise OperatorError(
                f"--notify needs the extra libraries ({error.name} is missing): "
                f"{describe_install('notify')}"
            ) from None
        # This class reads its debug lines. They hold the address, so nobody else does.
        logger = logging.getLogger(apprise.LOGGER_NAME)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        # Pictures in messages would be fetched from elsewhere.
        asset = apprise.AppriseAsset(
            app_id="signals", image_url_mask="", image_url_logo="", http_redirects=False
        )
        service = apprise.Apprise.instantiate(address, asset=asset)
        # Of several addresses, Apprise would make one that never works.
        if service is None or re.search(r"\S[\s,]+\w+://", address):
            raise OperatorError(
                "--notify or SIGNALS_NOTIFY_URL must be one address that Apprise knows, such as "
                "ntfys://ntfy.sh/TOPIC: see https://appriseit.com/services"
            )
        if "overflow=" not in address:
            # By default, a receiver refuses a message that is too long.
            service.overflow_mode = apprise.OverflowMode.SPLIT
        self._name = str(service.service_name)
        self._address = address.partition("://")[2]
        self._apprise = apprise.Apprise(asset=asset)
        self._apprise.add(service)

    async def __call__(self, rows: Sequence[Json], meta: Json) -> None:
        """Send them once; TransientError or RefusalError if the receiver does not accept them."""
        lines = [
            f"{ticker} {timeframe} {indicator}: {event}, price {price}, {at} UTC"
            for at, ticker, timeframe, indicator, event, price in FEED.build_table(
                {"signals": rows, "meta": meta}
            ).rows
        ]
        title = " ".join([*(mark.plain for mark in list_marks(meta)), "signals"])
        result = await self._apprise.async_notify(
            body="\n".join(lines), title=title, body_format="text", log_level=logging.DEBUG
        )
        if result:
            return
        said = [(entry.level, entry.message) for entry in result.logs()]
        # Debug lines quote rows.
        warned = " ".join(line for level, line in said if level != "DEBUG")
        statuses = [int(code) for code in STATUS.findall(warned)]
        # Some answer 200 to what they refuse.
        if statuses and all(is_refusal(one) or one < 300 for one in statuses):
            words = " ".join(found[1] for _, line in said if (found := WORDS.match(line)))
            quoted = quote_receiver(words, self._address)
            raise RefusalError(f"{self._name} answered {statuses[-1]}: {quoted}")
        answers = f"answered {statuses[-1]}" if statuses else "did not answer"
        raise TransientError(f"{self._name} {answers}")
