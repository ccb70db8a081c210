"""Threads share one malloc arena, and free memory is returned to the system.

Each test measures a new process, because arenas of other tests would remain.
"""

import ctypes
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.clause("operation"),
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc is file of heaps"
    ),
]

THREADS = 4
HEAPS = f"""
import ctypes, sys, tempfile, threading
from service.processes.lifecycle import limit_malloc_arenas

libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
if sys.argv[1] == "one":
    limit_malloc_arenas()
together = threading.Barrier({THREADS})

def allocate():
    together.wait()
    libc.malloc(1000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with tempfile.TemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fdopen(file.fileno(), b"w"))
    libc.malloc_info(0, stream)
    libc.fflush(stream)
    file.seek(0)
    print(file.read().count(b"<heap nr="))
"""
GIVEN_BACK = """
import ctypes
from pathlib import Path
from service.processes.lifecycle import release_memory

def held_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(60_000) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 60_000)
for block in blocks[:-1]:
    libc.free(ctypes.c_void_p(block))
before = held_pages()
release_memory()
print((before - held_pages()) * 4096)
"""


COLLECTIONS = """
import gc
from service.processes.lifecycle import prepare_to_serve

before = gc.get_threshold()
prepare_to_serve()
collections = gc.get_stats()[2]["collections"]
# Objects that stay, such as those of many connections.
kept = [[] for _ in range(20 * before[0] * before[1] * before[2])]
print(gc.get_stats()[2]["collections"] - collections)
"""


def printed(program: str, *arguments: str) -> int:
    command = [sys.executable, "-c", program, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.prove
def test_many_objects_that_stay_cause_no_full_collection_in_a_serving_process():
    assert printed(COLLECTIONS) == 0
    assert printed(COLLECTIONS.replace("prepare_to_serve()\n", "gc.collect()\n", 1)) > 0


@pytest.mark.prove
def test_threads_share_one_arena():
    assert printed(HEAPS, "several") > 1
    assert printed(HEAPS, "one") == 1


def test_memory_freed_by_a_catch_up_is_returned():
    assert printed(GIVEN_BACK) > 50_000_000
