"""The `signals` command as a process of its own, in an environment of its own."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [
    sys.executable,
    "-c",
    "from service.cli import main; raise SystemExit(main())",
]
ROOT = Path(__file__).parents[2]


def environment(folder: Path, **settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SIGNALS_")}
    given = {f"SIGNALS_{name.upper()}": value for name, value in settings.items()}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "SIGNALS_DATABASE_URL": f"sqlite:///{folder / 'signals.db'}",
        **given,
    }


def signals(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(folder, **settings),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
