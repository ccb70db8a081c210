"""The memory of a process: one heap of the C library for all threads, and what is given back."""

import ctypes
import gc
from contextlib import suppress

M_ARENA_MAX = -8  # of glibc's malloc.h


def limit_malloc_arenas() -> None:
    """Have threads keep no heaps of their own.

    To be called before there are threads; C libraries other than glibc are left as they are.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def release_memory() -> None:
    """Give free memory back, and spare what was made by now from the garbage collector.

    It would else halt all threads for 0.1 s.
    """
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
