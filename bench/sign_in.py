"""Measure whether the time of a write after a sign-in request reveals who is a member.

`python -m bench sign_in` requests links for members and strangers in random order, and times the
next writes on the same store. The figure is the AUC of telling the two apart by these times: 0.5 is
a guess, 1 a certainty. Other load on the machine hides differences.
"""

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import httpx

from bench.served import SIGNALS, STORE, start_service
from bench.table import Row

# A mailbox gets one mail a minute, so each is one sample.
MAILBOXES = 400
MAX_AUC = 0.6
WRITES = 3
SETTLE_S = 0.03
Samples = dict[bool, list[list[float]]]


def rows() -> list[Row]:
    """Return the AUC by the first write after a request, and by the first few together."""
    with tempfile.TemporaryDirectory() as folder:
        command = [SIGNALS, "serve", "--no-compute"]
        with (
            start_service(command, Path(folder) / STORE) as (_, url),
            httpx.Client(base_url=url, timeout=30) as client,
        ):
            for number in range(MAILBOXES):
                _buy_plan(client, _format_address(number, is_member=True))
            samples = _measure(client)
    return [_build_row(samples, 1), _build_row(samples, WRITES)]


def compute_auc(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the share of pairs in which the first value is larger; equal ones count half."""
    larger = sum((a > b) + (a == b) / 2 for a in first for b in second)
    return larger / (len(first) * len(second))


def _format_address(number: int, *, is_member: bool) -> str:
    return f"{'member' if is_member else 'nobody'}{number}@example.com"


def _buy_plan(client: httpx.Client, email: str) -> None:
    opened = client.post("/api/v1/access/checkout", json={"contact_email": email}).json()
    client.post(opened["checkout_url"], data={"action": "pay"}).raise_for_status()
    claim = {"claim_token": opened["claim_token"]}
    client.post("/api/v1/access/claim", json=claim).raise_for_status()


def _measure(client: httpx.Client) -> Samples:
    """Return the seconds of the writes that follow each request of members and of strangers."""
    requests = [(is_member, number) for is_member in (True, False) for number in range(MAILBOXES)]
    random.shuffle(requests)
    samples: Samples = {True: [], False: []}
    for is_member, number in requests:
        form = {"contact_email": _format_address(number, is_member=is_member)}
        client.post("/sign-in", data=form).raise_for_status()
        samples[is_member].append([_time_write(client) for _ in range(WRITES)])
        time.sleep(SETTLE_S)
    return samples


def _time_write(client: httpx.Client) -> float:
    began = time.perf_counter()
    body = {"contact_email": "probe@example.com"}
    client.post("/api/v1/access-request", json=body).raise_for_status()
    return time.perf_counter() - began


def _build_row(samples: Samples, count: int) -> Row:
    members, strangers = (
        [sum(times[:count]) for times in samples[is_member]] for is_member in (True, False)
    )
    auc = compute_auc(members, strangers)
    writes = "the first write" if count == 1 else f"the first {count} writes"
    return Row(
        f"AUC of recognizing members by {writes} after {len(members)} sign-in requests each",
        f"{auc:.2f} ({1000 * median(members):.1f} ms)",
        f"{1000 * median(strangers):.1f} ms",
        target=f"<= {MAX_AUC}",
        is_met=max(auc, 1 - auc) <= MAX_AUC,
    )
