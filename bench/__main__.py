"""Run every module of the bench that has `rows()` and print one table; each row is a figure.

`python -m bench [NAME ...] [--write]`; `--write` puts table and machine into docs/performance.md.
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
from bench.table import Row, processor, replaced, table

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
FAILED = "failed: "
LIBRARIES = ("uvicorn", "httptools", "starlette", "mcp", "pydantic", "numpy")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules; all without")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name} too")
    given = parser.parse_args(arguments)
    facts, took = machine(), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measured(modules(given.names), Path(folder), took))
    text = f"{facts} {told(took)}\n\n{table(rows)}\n"
    print(text)
    if given.write:
        PAGE.write_text(replaced(PAGE.read_text(), "bench", text))
    return 1 if any(row.ours.startswith(FAILED) for row in rows) else 0


def modules(names: Sequence[str] = ()) -> list[ModuleType]:
    """Return the modules of the bench that have rows, or those of the names alone."""
    found = names or [found.name for found in pkgutil.iter_modules(bench.__path__)]
    imported = (import_module(f"bench.{name}") for name in found if name != "__main__")
    return [module for module in imported if hasattr(module, "rows")]


def measured(found: Iterable[ModuleType], folder: Path, took: dict[str, float]) -> Iterator[Row]:
    """Yield the rows of each, noting its seconds; what fails is told in a row, and others run.

    One store serves all that take one: a first start takes long.
    """
    store: Path | None = None
    for module in found:
        wants_store = bool(inspect.signature(module.rows).parameters)
        try:
            if wants_store and store is None:
                with timed("store", took):
                    store = make_store(folder)
            with timed(module.__name__, took):
                yield from module.rows(store) if wants_store else module.rows()
        except (Exception, SystemExit) as failure:
            yield Row(module.__name__, f"{FAILED}{failure!r}", is_met=False)


@contextmanager
def timed(what: str, took: dict[str, float]) -> Iterator[None]:
    """Note and tell the seconds that the block takes."""
    print(f"{what} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    try:
        yield
    finally:
        took[what] = time.monotonic() - began
        print(f"{what}: {took[what]:.0f} s", file=sys.stderr, flush=True)


def told(took: Mapping[str, float]) -> str:
    each = ", ".join(f"{what.removeprefix('bench.')} {spent:.0f}" for what, spent in took.items())
    return f"The whole run took {sum(took.values()):.0f} s: {each}."


def machine() -> str:
    """Return what the figures depend on, in a sentence or two."""
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    by = "wrk" if has_wrk() else "our own generator in Python, wrk being absent"
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({processor()}), "
        f"{platform.system()}, Python {platform.python_version()}, {versions}; load by {by}; "
        f"load average {os.getloadavg()[0]:.1f} before."
    )


if __name__ == "__main__":
    sys.exit(main())
