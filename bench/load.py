"""Load on one address: at maximum throughput, by wrk or our own generator, or at a fixed rate.

Every call differs from the previous one: `NUMBER` in path and body counts up, and `SINCE` is an
instant within a range of time, in nanoseconds.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from schemas.vocabulary import format_instant

CONNECTIONS = 32
NUMBER, SINCE = "@number@", "@since@"
# From one call to the next `SINCE` moves by so many milliseconds, around the end of its range.
SINCE_STEP_MS = 61_813
# Filling in a number per call costs wrk little; checking each response in Lua would make wrk the
# bottleneck, so only statuses and sizes are summed up.
SCRIPT = """
local count = {first}
local method, path, body, headers = {method}, {path}, {body}, {headers}
local function filled(text)
  if not text:find("@", 1, true) then return text end
  local at = {since} + count * {step} % {span}
  local second = os.date("!%Y-%m-%dT%H:%M:%S", math.floor(at / 1000))
  local since = second .. string.format(".%03d%06dZ", at % 1000, count % 1000000)
  return (text:gsub("@number@", string.format("%d", count)):gsub("@since@", since))
end
request = function()
  count = count + 1
  return wrk.format(method, filled(path), headers, filled(body))
end
done = function(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format('{{"calls": %d, "took_s": %f, "bytes": %d, "failed": %d}}',
    summary.requests, summary.duration / 1e6, summary.bytes, failed))
end
"""


@dataclass(frozen=True, slots=True)
class Call:
    """An HTTP call: POST if it has a body, else GET.

    `SINCE` is an instant of the `since_span_ms` from `since_ms` (epoch ms) on.
    """

    path: str
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    since_ms: int = 0
    since_span_ms: int = 1

    @property
    def method(self) -> str:
        return "POST" if self.body else "GET"

    def with_number(self, number: int) -> "Call":
        """Return the call with its placeholders replaced for a call number."""
        at = self.since_ms + number * SINCE_STEP_MS % self.since_span_ms
        # Without the digits of nanoseconds, which the service ignores, texts could be equal.
        since = f"{format_instant(at)[:-1]}{number % 1_000_000:06d}Z"
        path, body = (
            text.replace(NUMBER, str(number)).replace(SINCE, since)
            for text in (self.path, self.body)
        )
        return Call(path, body, self.headers)


@dataclass(frozen=True, slots=True)
class Load:
    """The result of a load; `failed` counts statuses of 400 or more and broken connections.

    `answer_bytes` is the mean size of a response, `cpu_ratio` the generator's share of a core.
    """

    calls_s: float
    failed: int
    answer_bytes: float
    cpu_ratio: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Calls at a fixed rate, arrays of shape (calls,): due time (epoch s) and seconds taken.

    The seconds of a call count from its due time, even if it had to wait for a connection.
    """

    due_at: np.ndarray
    took_s: np.ndarray
    failed: int


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


def measure_load(url: str, call: Call, seconds: float, connections: int = CONNECTIONS) -> Load:
    """Load an address at its maximum rate, with wrk if it is installed."""
    generated = _run_wrk if has_wrk() else _run_own_generator
    before, began = _measure_cpu_s(), time.perf_counter()
    done = generated(url, call, seconds, connections)
    cpu_ratio = (_measure_cpu_s() - before) / (time.perf_counter() - began)
    calls, took_s = max(1, done["calls"]), done["took_s"]
    return Load(done["calls"] / took_s, done["failed"], done["bytes"] / calls, cpu_ratio)


def measure_arrivals(
    url: str, call: Call, rate: float, seconds: float, connections: int = 64
) -> Arrivals:
    """Make calls due at a fixed rate, whether or not earlier ones have been answered.

    wrk cannot do this: a generator that waits for a response before the next call hides stalls.
    """
    done = _run_generator(url, call, seconds, connections, rate)
    due_at, took_s = np.array(done["times"]).reshape(-1, 2).T
    return Arrivals(due_at, took_s, done["failed"])


def _run_wrk(url: str, call: Call, seconds: float, connections: int) -> dict[str, Any]:
    lua = SCRIPT.format(
        first=_next_first_number(),
        since=call.since_ms,
        step=SINCE_STEP_MS,
        span=call.since_span_ms,
        method=json.dumps(call.method),
        path=json.dumps(call.path),
        body=json.dumps(call.body),
        headers=_format_lua_table(call.headers.items()),
    )
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(lua)
        script.flush()
        options = ["-t1", f"-c{connections}", f"-d{seconds:.0f}s", "-s", script.name, url]
        return dict(json.loads(_run_command(["wrk", *options]).splitlines()[-1]))


def _run_own_generator(url: str, call: Call, seconds: float, connections: int) -> dict[str, Any]:
    done = _run_generator(url, call, seconds, connections, None)
    return {**done, "calls": len(done["times"])}


def _run_generator(
    url: str, call: Call, seconds: float, connections: int, rate: float | None
) -> dict[str, Any]:
    options = {
        "url": url,
        "call": asdict(call),
        "first": _next_first_number(),
        "seconds": seconds,
        "connections": connections,
        "rate": rate,
    }
    return dict(
        json.loads(_run_command([sys.executable, "-m", "bench.generator"], json.dumps(options)))
    )


def _run_command(command: list[str], stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def _next_first_number() -> int:
    """Return a number above those of all earlier calls, at less than one call per microsecond."""
    return time.monotonic_ns() // 1000 % 10**9


def _format_lua_table(items: Iterable[tuple[str, str]]) -> str:
    pairs = (f"[{json.dumps(name)}] = {json.dumps(value)}" for name, value in items)
    return f"{{{', '.join(pairs)}}}"


def _measure_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
