"""What the README shows is run here, on the recorded bars where they are present."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx

from tests.compute.recorded import recorded_folder, require_recorded
from tests.service.commands import ROOT, signals
from tests.service.test_serve import served_process

README = (ROOT / "README.md").read_text()


def replayed(folder: Path) -> str:
    bars = folder / "bars"
    bars.mkdir()
    for name in ("BTC_1h.csv", "BTC_funding.csv"):
        shutil.copy(recorded_folder() / name, bars)
    assert signals(folder, "replay", "--bars", "bars").returncode == 0
    return signals(folder, "keys", "create", "--label", "me").stdout.strip()


def test_the_call_of_the_readme_gives_its_answer(tmp_path):
    require_recorded()
    request = re.search(r"```\nPOST (\S+)\n(\{.*\})\n```", README)
    shown = re.search(r"```json\n(.*?)```", README, re.DOTALL)
    assert request
    assert shown
    api_key = replayed(tmp_path)
    with served_process(tmp_path, source="files:bars") as (address, _):
        answer = httpx.post(
            address + request[1],
            content=request[2],
            headers={"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
        ).json()
    assert answer["result"]["structuredContent"] == json.loads(shown[1])
    assert json.loads(answer["result"]["content"][0]["text"]) == json.loads(shown[1])


def test_the_registration_file_names_the_default_address_and_the_key_variable():
    server = json.loads((ROOT / "mcp.json").read_text())["mcpServers"]["signals"]
    assert server["url"] == "http://127.0.0.1:8000/api/v1/mcp"
    assert server["headers"] == {"Authorization": "Bearer ${SIGNALS_API_KEY}"}


def test_the_python_client_of_the_readme_reads_the_state(tmp_path):
    require_recorded()
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code
    api_key = replayed(tmp_path)
    with served_process(tmp_path, source="files:bars") as (address, _):
        program = code[1].replace("http://127.0.0.1:8000", address)
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "SIGNALS_API_KEY": api_key},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert "trend_oracle" in done.stdout
