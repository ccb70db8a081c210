"""Run the benchmarks and print one table with a row per figure.

`python -m bench [NAME | --write]`; `--write` also updates docs/performance.md.
"""

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from bench.table import Row, format_table
from tools.generate_docs import BLOCK_PATTERN

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
QUESTIONS = ("endpoint", "poll", "start", "step", "fairness", "midnight")
FAILED = "failed: "
LIBRARIES = ("uvicorn", "starlette", "mcp", "pydantic", "numpy")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("name", nargs="?", choices=QUESTIONS, help="one module (default: all)")
    group.add_argument("--write", action="store_true", help=f"also update docs/{PAGE.name}")
    options = parser.parse_args(arguments)
    if shutil.which("wrk") is None:
        parser.error("wrk, which makes the load, is not installed: run apt-get install wrk")
    facts = describe_machine()
    rows = list(measure([options.name] if options.name else QUESTIONS))
    text = f"{facts}\n\n{format_table(rows)}\n"
    print(text)
    if options.write:
        PAGE.write_text(
            BLOCK_PATTERN.sub(lambda match: f"{match[1]}\n{text}\n{match[3]}", PAGE.read_text())
        )
    return 1 if any(row.ours.startswith(FAILED) for row in rows) else 0


def measure(names: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of each module; the failure of one is a row, and the others still run."""
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            yield from import_module(f"bench.{name}").rows()
        # Modules raise SystemExit if their results would not be comparable.
        except (Exception, SystemExit) as failure:
            yield Row(name, f"{FAILED}{failure!r}", is_met=False)


def describe_machine() -> str:
    """Return a sentence on the day, the machine and the versions."""
    model = Path("/proc/cpuinfo").read_text().partition("model name\t: ")[2].partition("\n")[0]
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({model}), "
        f"Python {platform.python_version()}, {versions}; load by wrk; "
        f"load average {os.getloadavg()[0]:.1f} before."
    )


if __name__ == "__main__":
    sys.exit(main())
