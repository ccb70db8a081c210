"""Load on one address: as much as `wrk` can send, or at a fixed rate; and comparison by turns."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import numpy as np

from bench.table import Row

CONNECTIONS, TIMEOUT_S = 32, 60
# The same code differed by a factor of two within an hour on a busy machine, so rates are compared
# only within short alternating rounds, and the best round counts.
# A peer needs longer than a second for its first large response on each connection.
ROUNDS, ROUND_S = 3, 2
# An error is a fraction of a response, so the mean size shows errors that have status 200.
MIN_SIZE_RATIO = 0.95
SCRIPT = """
local requests, at = {}, 0
for text in io.open("%s", "rb"):read("*a"):gmatch("%%Z+") do requests[#requests + 1] = text end
request = function()
  at = at %% #requests + 1
  return requests[at]
end
done = function(summary)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(summary.requests, summary.duration / 1e6, summary.bytes, failed)
end
"""


class Call(NamedTuple):
    """An HTTP call: POST if it has a body, else GET."""

    path: str
    body: str = ""
    headers: Mapping[str, str] = {}

    @property
    def method(self) -> str:
        return "POST" if self.body else "GET"

    def encode(self, host: str) -> bytes:
        headers = {"Host": host, **self.headers}
        if self.body and "Transfer-Encoding" not in headers:
            headers["Content-Length"] = str(len(self.body.encode()))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{self.method} {self.path} HTTP/1.1\r\n{head}\r\n{self.body}".encode()


class Arrivals(NamedTuple):
    """Calls at a fixed rate, arrays of shape (calls,): due time (epoch s), seconds, failures."""

    due_at: np.ndarray
    took_s: np.ndarray
    failed: np.ndarray


def run_wrk(
    url: str, calls: Sequence[Call], seconds: int = ROUND_S, connections: int = CONNECTIONS
) -> tuple[float, float, float]:
    """Send the calls again and again, each as soon as a connection is free.

    Return the calls a second, the mean size of a response (bytes) and the number of failed calls:
    those with a status of 400 or more, and broken connections.
    """
    with tempfile.TemporaryDirectory() as folder:
        requests, script = Path(folder) / "requests", Path(folder) / "script.lua"
        requests.write_bytes(b"\0".join(call.encode(urlsplit(url).netloc) for call in calls))
        script.write_text(SCRIPT % requests)
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    answered, took_s, size, failed = map(float, printed.splitlines()[-1].split())
    return answered / took_s, size / max(1, answered), failed


def watch(url: str, calls: Sequence[Call], rate: float, seconds: float) -> Arrivals:
    """Make calls in turn, due at a fixed rate, whether or not earlier ones have been answered.

    The seconds of a call count from its due time: a client that waits for a response before its
    next call would hide stalls.
    """
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client, ThreadPoolExecutor(32) as pool:
        due_at = time.time() + 0.1 + np.arange(rate * seconds) / rate

        def make(due: float, call: Call) -> tuple[float, bool]:
            time.sleep(max(0.0, due - time.time()))
            try:
                is_failed = client.request(
                    call.method, call.path, content=call.body, headers=call.headers
                ).is_error
            except httpx.HTTPError:
                is_failed = True
            return time.time() - due, is_failed

        took_s, failed = zip(*pool.map(make, due_at, cycle(calls)), strict=True)
    return Arrivals(due_at, np.array(took_s), np.array(failed))


class Side(NamedTuple):
    """One server in a comparison: its calls, the size of a response without its head (bytes).

    `target` is the required ratio of our rate to this server's; None if there is no requirement.
    """

    name: str
    url: str
    list_calls: Callable[[], Sequence[Call]]
    body_bytes: int
    target: float | None = None

    def measure_rate(self) -> float:
        """Return the calls a second of one round; SystemExit if some failed."""
        calls_s, mean_bytes, failed = run_wrk(self.url, self.list_calls())
        if failed or mean_bytes < self.body_bytes * MIN_SIZE_RATIO:
            raise SystemExit(f"{self.name}: {failed:.0f} failed, {mean_bytes:.0f} bytes")
        return calls_s


def compare_rates(what: str, ours: Side, others: Sequence[Side]) -> Iterator[Row]:
    """Load all sides by turns and yield a row for each of the others."""
    rounds = [[side.measure_rate() for side in (ours, *others)] for _ in range(ROUNDS)]
    best, *rates = map(max, zip(*rounds, strict=True))
    for other, rate in zip(others, rates, strict=True):
        ratio, target = best / rate, other.target
        verdict = ("", None) if target is None else (f">= {target:g}", ratio >= target)
        numbers = f"{best:,.0f} calls/s", f"{rate:,.0f} calls/s", f"{ratio:.2f}"
        yield Row(f"{what} / {other.name}", *numbers, *verdict)
