"""How long does a start take, and how much memory does the service hold then?"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.served import SERVE, STORE, build_settings, copy_store, run_server
from bench.table import Row, build_bound_row

STARTS = 3
FIRST_RESPONSE_S, FULL_RESPONSE_S, RESTART_S, MEMORY_MIB = 2, 10, 3, 150
# Needs no key, which nobody can create before there is a store.
PATH = "/api/v1/stats"


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with run_server(SERVE, build_settings(Path(folder) / STORE)) as server:
            server.wait_for(PATH)
            first_s = time.perf_counter() - began
            server.wait_for(PATH, 200)
            full_s = time.perf_counter() - began
    what = "first start of the simulated market, first response"
    yield build_bound_row(what, first_s, FIRST_RESPONSE_S, "s")
    yield build_bound_row("the same, first full response", full_s, FULL_RESPONSE_S, "s")
    with copy_store() as store:
        starts = [time_start(store) for _ in range(STARTS)]
    took_s, memory = map(median, zip(*starts, strict=True))
    yield build_bound_row("first response on a year-old store, 251 assets", took_s, RESTART_S, "s")
    yield build_bound_row("resident memory once it has the feed", memory, MEMORY_MIB, "MiB")


def time_start(store: Path) -> tuple[float, float]:
    """Serve a store; return the seconds until the first response, and MiB once it has the feed."""
    began = time.perf_counter()
    with run_server(SERVE, build_settings(store)) as server:
        server.wait_for("/api/v1")
        took_s = time.perf_counter() - began
        server.wait_for(PATH, 200)
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return took_s, int(status.partition("VmRSS:")[2].split()[0]) / 1024
