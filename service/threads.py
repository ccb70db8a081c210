"""How threads share a process: the interpreter by short turns, and one heap of the C library."""

import ctypes
import gc
import sys
from contextlib import suppress

TURN_S = 0.001
M_ARENA_MAX = -8  # of glibc's malloc.h


def share() -> None:
    """Let an event loop wait less for threads beside it, and have these keep no heaps of their own.

    To be called before there are threads; C libraries other than glibc are left as they are.
    """
    sys.setswitchinterval(TURN_S)
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def settle() -> None:
    """Give free memory back, and spare what was made by now from the garbage collector.

    It would else halt all threads for 0.1 s.
    """
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
