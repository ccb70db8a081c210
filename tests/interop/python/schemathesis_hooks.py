"""Hooks of a Schemathesis run: excused failures with their reasons, and payment of checkouts.

At the end of a run, the hooks write `hooks.json` into its folder: the excuses that were needed and
the statuses of each operation.
"""

import atexit
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import requests
import schemathesis

REJECTED, ACCEPTED = "RejectedPositiveData", "AcceptedNegativeData"


@dataclass(frozen=True)
class Excuse:
    """A kind of failure on some paths below /api/v1, if `says` matches a problem it names.

    `sends` must match the body and the headers of the request, as JSON.
    """

    why: str
    failure: str
    paths: tuple[str, ...]
    says: str
    sends: str = ""


EXCUSES = [
    Excuse(
        "Tickers match in any case and come and go with coverage, so there is no enum of them.",
        *(REJECTED, ("state", "signals", "flips", "catalog"), "^ticker: unknown "),
    ),
    Excuse(
        "An indicator may be given by its id, screener id or display name, spelt freely.",
        *(REJECTED, ("signals",), "^indicator: "),
    ),
    Excuse(
        "Boards are kept for a year before now: JSON Schema has no bounds of instants.",
        *(REJECTED, ("state", "confluence"), '^as_of: "[^"]+" is outside the stored history'),
    ),
    Excuse(
        "The largest window depends on another parameter; the schema has that of all timeframes.",
        *(REJECTED, ("flips",), r"^hours: \d+ is above the maximum of \d+ for timeframe \w\w"),
    ),
    Excuse(
        "Changes stand in two views of state only, which depends on another parameter.",
        *(REJECTED, ("state",), "^detail: changes do not fit view "),
    ),
    Excuse(
        "Only ids of published rows have a proof, and JSON Schema cannot list them.",
        *(REJECTED, ("log/proof",), "^id: "),
    ),
    Excuse(
        "JSON-RPC errors have the HTTP status 200, and a notification is answered by nothing.",
        *(ACCEPTED, ("mcp",), '^$|^{"jsonrpc":"2.0","id":[^{]*,"error":{"code":-32'),
    ),
    Excuse(
        "An empty protocol version counts as none: some proxies send it.",
        *(ACCEPTED, ("mcp",), '^{"jsonrpc":"2.0",', '"MCP-Protocol-Version": ""'),
    ),
    Excuse(
        "Some frameworks send null for an optional field, which means that it is left out.",
        *(ACCEPTED, ("access-request", "access/checkout"), "", ": null[,}]"),
    ),
]
needed: set[Excuse] = set()
answered: dict[str, set[int]] = defaultdict(set)


def list_problems(response):
    """Return the problems that an error's message names; of other responses, the whole text."""
    try:
        message = response.json()["message"]
    except (ValueError, KeyError):
        return [response.text]
    return re.split(r"\. (?=\w+: )", message)


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Drop a failure if each problem of the response is excused."""
    path = case.operation.path.removeprefix("/api/v1/")
    sent = json.dumps([case.body, dict(case.headers or {})], default=str)
    excuses = [
        e
        for e in EXCUSES
        if path in e.paths and e.failure == type(failure).__name__ and re.search(e.sends, sent)
    ]
    for problem in list_problems(response):
        excuse = next((e for e in excuses if re.search(e.says, problem)), None)
        if excuse is None:
            return True
        needed.add(excuse)
    return False


@schemathesis.hook
def after_call(context, case, response):
    """Record the status, and pay every yearly checkout, so that claims end in both ways."""
    answered[case.operation.label].add(response.status_code)
    if case.operation.path.endswith("/access/checkout") and response.status_code == 201:
        checkout = response.json()
        if checkout["plan"]["billing"] == "yearly":
            requests.post(checkout["checkout_url"], data={"action": "pay"}).raise_for_status()


@atexit.register
def write_report():
    report = {
        "excused": {excuse.why: excuse in needed for excuse in EXCUSES},
        "answered": {label: sorted(statuses) for label, statuses in answered.items()},
    }
    Path("hooks.json").write_text(json.dumps(report))
