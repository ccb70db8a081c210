"""Hands rows of the feed to the user's own program, to their address as a signed request, or to
people as messages of the services that Apprise knows.

Requests are signed as Standard Webhooks does: HMAC-SHA256 over id, timestamp and body.
"""

import asyncio
import base64
import binascii
import ctypes
import hmac
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2

from schemas.errors import OperatorError
from schemas.version import VERSION, describe_install
from schemas.vocabulary import Clock
from service.commands.console import echo
from service.terminal.views import FEED, build_event, encode_json, list_marks
from verifier.client import Json, TransientError, fetch, open_transport, parse_retry_after
from verifier.report import format_one_line

USER_AGENT = f"signals/{VERSION}"
SECRET_PREFIX = "whsec_"
# The bounds that the specification sets for the secret.
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
SECRET_HINT = (
    "SIGNALS_WEBHOOK_SECRET must be whsec_ followed by 24 to 64 bytes in base64; create one with "
    '`echo "whsec_$(openssl rand -base64 32)"`, and give it to the receiver too'
)

# The shell's statuses for a program that it cannot run, or cannot find.
UNUSABLE_STATUSES = (126, 127)
GONE = 410
# These may pass although they begin with 4.
PASSING_STATUSES = frozenset({408, 425, 429})
POST_TIMEOUT_S = 20.0
MIN_HIDDEN_CHARACTERS = 6
# How Apprise logs the status of an answer, or the code of ntfy that begins with it.
STATUS = re.compile(r"\berror=(\d{3})")
# How it logs the body, in quotes.
WORDS = re.compile(r"""Response Details:\s*b?['"]?(.*?)['"]?$""", re.DOTALL)

# Called with rows and the `meta` of their page. A TransientError is retried, a RefusalError parks
# the rows, and any other error ends the command.
Deliver = Callable[[Sequence[Json], Json], Awaitable[None]]


def parse_webhook_secret(text: str) -> bytes:
    """Return the signing key of a secret `whsec_...`; raise OperatorError if it is not one."""
    prefix, mark, encoded = text.strip().partition(SECRET_PREFIX)
    try:
        key = base64.b64decode(encoded, validate=True) if mark and not prefix else b""
    except binascii.Error:
        key = b""
    if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise OperatorError(SECRET_HINT)
    return key


def sign(key: bytes, message_id: str, sent_at_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of a signed request; `sent_at_s` is in epoch seconds."""
    digest = hmac.digest(key, f"{message_id}.{sent_at_s}.".encode() + body, "sha256")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(sent_at_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


class RefusalError(OperatorError):
    """A receiver that refuses rows, with its words: it would refuse them again."""


def is_refusal(status: int) -> bool:
    """Return true if the same request would get this status again."""
    return 400 <= status < 500 and status not in PASSING_STATUSES


def quote_receiver(text: str, address: str) -> str:
    """Return the words of a receiver as one line, without parts of the address, often secret."""
    parts = {part for form in (address, unquote(address)) for part in re.split("[/:@?&=,]", form)}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= MIN_HIDDEN_CHARACTERS:
            text = text.replace(part, "(hidden)")
    return format_one_line(text)


def hide_argument(text: str) -> None:
    """Overwrite an argument of this process, so that the list of processes does not show it.

    Where that is impossible, say so.
    """
    if not text:
        return
    secret = os.fsencode(text)
    try:
        words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        echo(
            "signals: the list of processes shows the address, because this system has no /proc to "
            "hide it; that of --notify can be in SIGNALS_NOTIFY_URL instead"
        )
        return
    # Fields 48 and 49 are where the arguments start and end.
    start, end = int(words[45]), int(words[46])
    if (at := ctypes.string_at(start, end - start).find(secret)) >= 0:
        ctypes.memset(start + at, ord("*"), len(secret))


async def run_program(command: str, rows: Sequence[Json], meta: Json) -> None:
    """Run a shell command once for rows, with each as one line of JSON on standard input.

    TransientError if it fails, OperatorError if it cannot be run.
    """
    lines = b"".join(encode_json(build_event(row, meta)) + b"\n" for row in rows)
    process = await asyncio.create_subprocess_shell(command, stdin=asyncio.subprocess.PIPE)
    try:
        await process.communicate(lines)
    finally:
        # It still runs only if this command is being stopped.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
    if process.returncode in UNUSABLE_STATUSES:
        raise OperatorError(
            f"the shell cannot run the program of --exec (status {process.returncode}): check its "
            "path and that it is executable"
        )
    if process.returncode:
        raise TransientError(f"the program failed with status {process.returncode}")


class BodyTemplate:
    """A file in Jinja's language that makes the body of a request, which is JSON, from an event."""

    def __init__(self, path: Path) -> None:
        """Raise OperatorError if it cannot be read."""
        # Only here, because it loads slowly.
        import jinja2

        def escape(value: Any) -> Any:
            # A text of the service can then not end the text of the template that it stands in.
            # Of `tojson`, it is JSON already.
            is_json = hasattr(value, "__html__")
            return value if is_json else re.sub('^"|"$', "", json.dumps(value, default=str))

        self._path = path
        self._errors = (jinja2.TemplateError, OSError, TypeError, ValueError)
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, finalize=escape)
        with self._explain_failures():
            self._template = environment.from_string(path.read_text())

    def render(self, event: Json) -> bytes:
        """Return the body for an event; OperatorError if it is not JSON."""
        with self._explain_failures():
            body = self._template.render(event)
            json.loads(body)
        return body.encode()

    @contextmanager
    def _explain_failures(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            line = getattr(error, "lineno", None)
            reason = f"line {line}: {error}" if line else str(error)
            raise OperatorError(
                f"--body {self._path} does not give a JSON body: {format_one_line(reason)}"
            ) from None


# Its fields hold secrets.
@dataclass(repr=False)
class WebhookSender:
    """Posts each row to an address, signed as Standard Webhooks specifies.

    `proxy` is the variable that names a proxy, and its address.
    """

    url: str
    key: bytes
    wall_clock: Clock
    proxy: tuple[str, str] | None = None
    template: BodyTemplate | None = None

    def build_body(self, row: Json, meta: Json) -> bytes:
        """Return the body of the request for a row."""
        event = {
            "type": f"signal.{row['tier']}",
            "timestamp": row["created_at"],
            "data": build_event(row, meta),
        }
        return encode_json(event) if self.template is None else self.template.render(event)

    async def __call__(self, rows: Sequence[Json], meta: Json) -> None:
        """Post each once; TransientError or RefusalError unless the answer is 2xx.

        OperatorError if it is 410.
        """
        host = urlsplit(self.url).netloc
        for row in rows:
            body = self.build_body(row, meta)
            if not (row["id"].isascii() and row["id"].isprintable()):
                raise ValueError("the id of a row cannot be sent as a header")
            # The id is the same for each attempt, and has no dots, because it is signed with dots
            # around it. Each attempt has a signature of its own: receivers refuse old timestamps.
            signed = sign(self.key, row["id"].replace(".", ":"), self.wall_clock() // 1000, body)
            headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT, **signed}
            transport = open_transport(self.url, self.proxy)
            try:
                async with httpx2.AsyncClient(timeout=POST_TIMEOUT_S, transport=transport) as http:
                    response = await fetch(
                        *(http, "POST", self.url, POST_TIMEOUT_S),
                        needs_body=False,
                        content=body,
                        headers=headers,
                    )
            except httpx2.HTTPError as error:
                # The address may hold a secret in its path, so only its host is named.
                reason = type(error).__name__
                if self.proxy is not None:
                    reason += f", through the proxy that {self.proxy[0]} names"
                raise TransientError(f"{host} did not answer ({reason})") from None
            status = response.status_code
            if status == GONE:
                raise OperatorError(f"{host} answered 410: it wants no more rows")
            if is_refusal(status):
                secret = self.url.partition("://")[2].removeprefix(host)
                words = quote_receiver(response.text, secret)
                raise RefusalError(f"{host} answered {status}: {words}")
            if not response.is_success:
                raise TransientError(f"{host} answered {status}", parse_retry_after(response))


def parse_post_url(text: str) -> str:
    """Return the address of --post; OperatorError, which does not repeat it, if it is invalid."""
    try:
        # The client that sends is stricter, except about ports.
        parts, _ = urlsplit(text), httpx2.URL(text)
        is_address = bool(parts.hostname) and parts.port != 0
    except (ValueError, httpx2.InvalidURL):
        is_address = False
    if not is_address or parts.scheme not in ("http", "https"):
        raise OperatorError("--post must be an http:// or https:// address")
    if parts.username or parts.password:
        raise OperatorError("--post must be an address without user name and password")
    return text


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
