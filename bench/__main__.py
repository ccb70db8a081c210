"""Run every benchmark module that has `rows()` and print one table with a row per figure.

`python -m bench [NAME ...] [--write]`; `--write` also updates docs/performance.md.
"""

import argparse
import inspect
import os
import pkgutil
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import bench
from bench.load import has_wrk
from bench.served import make_store
from bench.table import Row, format_table, read_processor_name, replace_between_markers

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
FAILED = "failed: "
LIBRARIES = ("uvicorn", "httptools", "starlette", "mcp", "pydantic", "numpy")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules to run (default: all)")
    parser.add_argument("--write", action="store_true", help=f"also update docs/{PAGE.name}")
    options = parser.parse_args(arguments)
    facts, durations = describe_machine(), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measure_modules(find_modules(options.names), Path(folder), durations))
    text = f"{facts} {format_durations(durations)}\n\n{format_table(rows)}\n"
    print(text)
    if options.write:
        PAGE.write_text(replace_between_markers(PAGE.read_text(), "bench", text))
    return 1 if any(row.ours.startswith(FAILED) for row in rows) else 0


def find_modules(names: Sequence[str] = ()) -> list[ModuleType]:
    """Return the benchmark modules that have `rows()`; if names are given, only those."""
    found = names or [found.name for found in pkgutil.iter_modules(bench.__path__)]
    imported = (import_module(f"bench.{name}") for name in found if name != "__main__")
    return [module for module in imported if hasattr(module, "rows")]


def measure_modules(
    found: Iterable[ModuleType], folder: Path, durations: dict[str, float]
) -> Iterator[Row]:
    """Yield the rows of each module and record its seconds in `durations`.

    If a module fails, its failure is a row and the others still run.
    """
    # A first start computes a year of history, so all modules that need a store copy the same one.
    store: Path | None = None
    for module in found:
        takes_store = bool(inspect.signature(module.rows).parameters)
        try:
            if takes_store and store is None:
                with time_block("store", durations):
                    store = make_store(folder)
            with time_block(module.__name__, durations):
                yield from module.rows(store) if takes_store else module.rows()
        # Modules raise SystemExit if their results would not be comparable.
        except (Exception, SystemExit) as failure:
            yield Row(module.__name__, f"{FAILED}{failure!r}", is_met=False)


@contextmanager
def time_block(name: str, durations: dict[str, float]) -> Iterator[None]:
    """Record and print the seconds that the block takes."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    try:
        yield
    finally:
        durations[name] = time.monotonic() - began
        print(f"{name}: {durations[name]:.0f} s", file=sys.stderr, flush=True)


def format_durations(durations: Mapping[str, float]) -> str:
    each = ", ".join(
        f"{what.removeprefix('bench.')} {spent:.0f}" for what, spent in durations.items()
    )
    return f"The whole run took {sum(durations.values()):.0f} s: {each}."


def describe_machine() -> str:
    """Return a sentence on the machine, the versions and the load generator."""
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    by = "wrk" if has_wrk() else "our own generator in Python (wrk is not installed)"
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({read_processor_name()}), "
        f"{platform.system()}, Python {platform.python_version()}, {versions}; load by {by}; "
        f"load average {os.getloadavg()[0]:.1f} before."
    )


if __name__ == "__main__":
    sys.exit(main())
