"""What threads share: one heap, and memory that is given back.

Each measures a process of its own, whose heaps no other test has made.
"""

import ctypes
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.clause("operation"),
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc is told of heaps"
    ),
]

THREADS = 4
HEAPS = f"""
import ctypes, sys, tempfile, threading
from service.processes.memory import limit_malloc_arenas

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
with tempfile.TemporaryFile() as told:
    stream = ctypes.c_void_p(libc.fdopen(told.fileno(), b"w"))
    libc.malloc_info(0, stream)
    libc.fflush(stream)
    told.seek(0)
    print(told.read().count(b"<heap nr="))
"""
GIVEN_BACK = """
import ctypes
from pathlib import Path
from service.processes.memory import release_memory

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


def printed(program: str, *arguments: str) -> int:
    command = [sys.executable, "-c", program, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_threads_allocate_from_one_heap():
    assert printed(HEAPS, "several") > 1
    assert printed(HEAPS, "one") == 1


def test_what_a_catch_up_freed_is_given_back():
    assert printed(GIVEN_BACK) > 50_000_000
