"""The pages of docs and SECURITY.md name only what exists, and what they show runs as it stands.

The recipes of docs/commands.md run against a service. docs/indicators.md has all parameters of the
code and the bar of each first value. docs/proof.md shows what customers read when an operator
rewrites history: the SQL of each scene is executed, and the output of the real command is compared
with the page. Hashes, signatures, keys and the date of the record differ each time and are masked.
"""

import asyncio
import json
import re
import shlex
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compute.alerts import rules
from compute.indicators import contract
from compute.indicators.contract import Bar, Indicator
from compute.indicators.registry import INDICATORS
from schemas.vocabulary import COOLDOWN_CANDLES, CURRENT_ACTIONS, TIMEFRAME_DURATIONS_S
from service.config.settings import DEFAULT_IDLE_S
from service.http.server import MAX_FRAMING_BYTES, RESERVED_DESCRIPTORS
from service.terminal.deliveries import build_event
from serving.http import MAX_BODY_BYTES
from tests.service.commands.test_serve import served_process
from tests.support.bar_sets import advance_bar
from tests.support.example_market import HOUR_MS, NOON, make_batch, make_flips
from tests.support.running_service import RunningService, served as served
from tests.support.signals_command import ROOT, create_key, run_signals
from tests.support.small_market import DENSE, list_opens, make_bars, write_bars
from tools.clauses import find_clause_tests, read_specification
from web.docs import build_anchor

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PATH = r"[A-Za-z_]+(?:/[A-Za-z_]+)+(?:\.[a-z]+)?"
# Such as "`Purchases.claim` (`access/purchases.py`)"; a line may break between the two.
NAMED_IN_FILE = rf"`([A-Za-z_.]+)`\s+(?:\(|in\s+)`({PATH})`"


@pytest.mark.clause("documents")
def test_every_path_of_the_architecture_and_the_glossary_exists():
    paths = re.findall(rf"`({PATH})`", ARCHITECTURE)
    assert len(paths) > 60
    templates = [path for path in paths if "NAME" in path]
    assert len(templates) == 6
    places = re.findall(r"`([a-z_]+/[a-z_/.]+)`", GLOSSARY)
    assert len(places) > len(TERM_ROWS)
    named = [*places, *(path for path in paths if path not in templates)]
    assert [path for path in named if not (ROOT / path).exists()] == []


def defines(name: str, path: str) -> bool:
    text = (ROOT / path).read_text()
    return all(
        re.search(rf"^ *(?:(class|(async )?def) {part}\b|{part}\b.* = )", text, re.MULTILINE)
        for part in name.split(".")
    )


GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
TERMS = GLOSSARY.partition("## Market data")[2]
TERM_ROWS = re.findall(r"^\| (.+?) \| (.+?) \| `(.+?)` \|$", TERMS, re.MULTILINE)


@pytest.mark.clause("documents")
def test_every_name_of_the_architecture_and_the_glossary_is_defined_in_its_file():
    named = re.findall(NAMED_IN_FILE, ARCHITECTURE)
    assert len(named) > 30
    terms = [(name, path) for term, _, path in TERM_ROWS for name in re.findall(r"`(\w+)`", term)]
    assert len(terms) > 50
    assert [one for one in [*named, *terms] if not defines(*one)] == []


@pytest.mark.clause("documents")
def test_every_term_has_one_row():
    counts = Counter(term for cells, _, _ in TERM_ROWS for term in cells.split(", "))
    assert [term for term, count in counts.items() if count > 1] == []
    assert len(TERM_ROWS) == len(re.findall(r"^\| .+ \|$", TERMS, re.MULTILINE)) - 6 >= 60


CONTRACT = (ROOT / "docs" / "contract.md").read_text()
MAX_WORDS = 5000
# Sections 13 to 20 are one: the pages of a service.
SECTIONS_OF_PAGES = {str(number) for number in range(13, 21)}


@pytest.mark.clause("documents")
def test_the_contract_is_one_short_page():
    shown = re.sub(r"<!--.*?-->|^#+|^- |---|\|", " ", CONTRACT, flags=re.MULTILINE)
    assert len(CONTRACT.split()) <= MAX_WORDS
    assert len(shown.split()) <= MAX_WORDS


@pytest.mark.clause("documents")
def test_every_section_of_a_clause_has_a_heading():
    headings = dict(re.findall(r"^##+ (\d[\d.]*) (.+)$", CONTRACT, re.MULTILINE))
    assert headings.pop("13") == "to 20 Pages"
    titles = read_specification().titles
    assert headings == {id_: titles[id_] for id_ in titles.keys() - SECTIONS_OF_PAGES}


DECISIONS = (ROOT / "docs" / "decisions.md").read_text()
RECORD = re.compile(
    r"^### (\d+)\. (.+)\n\n(\d{4}-\d{2}-\d{2})\n\n"
    r"\*\*Context\.\*\* ((?:.+\n)+)\n\*\*Decision\.\*\* ((?:.+\n)+)\n"
    r"\*\*Consequences\.\*\* ((?:.+\n?)+)",
    re.MULTILINE,
)
DECIDED = RECORD.findall(DECISIONS)


@pytest.mark.clause("documents")
def test_every_record_is_short_and_has_a_date_and_three_parts():
    assert len(DECIDED) == len(re.findall(r"^### ", DECISIONS, re.MULTILINE)) <= 50
    assert [int(number) for number, *_ in DECIDED] == list(range(1, len(DECIDED) + 1))
    sizes = {title: len(" ".join(parts).split()) for _, title, _, *parts in DECIDED}
    assert {title: size for title, size in sizes.items() if not 40 <= size <= 130} == {}


FAULTS = (ROOT / "docs" / "sources.md").read_text().split("## When data are bad")[1]


@pytest.mark.clause("documents")
def test_every_event_of_a_fault_is_written_by_the_service():
    rows = re.findall(
        r"^\| (?!fault|---).+ \| .+ \| (.+) \|$", FAULTS.split("\n## ")[0], re.MULTILINE
    )
    events = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    written = "".join(
        path.read_text() for part in ("compute", "service") for path in (ROOT / part).rglob("*.py")
    )
    assert len(events) > 10
    assert {event for event in events if f'"{event}"' not in written} == set()


FOLDERS = (
    "",
    ".github",
    "docs",
    "docs/images",
    "rest_shim",
    "skills/signals",
)
PAGES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md"))
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


@cache
def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings; a repeated one has a number."""
    counts: Counter[str] = Counter()
    anchors = set()
    for title in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        anchor = build_anchor(re.sub(r"\[(.+?)\]\(.+?\)", r"\1", title))
        anchors.add(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return anchors


@pytest.mark.clause("documents")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    dead_links = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in list_anchors(target)):
            dead_links.append(link)
    assert dead_links == []


CLIENTS = (ROOT / "docs" / "agents.md").read_text().split("## Clients and frameworks")[1]
PINS = ROOT / "tests" / "interop"


@pytest.mark.clause("documents")
@pytest.mark.clause("interop")
def test_the_page_has_every_client_in_the_version_that_the_tests_pin():
    # The first line of a list pins the client, the others what it needs; one list is of a server.
    lists = [path for path in (PINS / "python").glob("*.txt") if path.stem != "fastmcp_server"]
    pinned = {re.match(r"([\w-]+)(?:\[\w+\])?==(\S+)", path.read_text()).groups() for path in lists}
    packages = json.loads((PINS / "node" / "package.json").read_text())["dependencies"]
    for name, version in packages.items():
        alias = re.fullmatch(r"npm:(.+)@(.+)", version)
        pinned.add(alias.groups() if alias else (name, version))
    assert set(re.findall(r"^\| (\S+) \| (\S*\d\S*) \| .+ \|$", CLIENTS, re.MULTILINE)) == pinned


COMMANDS = (ROOT / "docs" / "commands.md").read_text()


@pytest.mark.clause("documents")
async def test_the_request_on_the_page_of_the_command_has_the_fields_of_a_row(
    served: RunningService,
):
    (block,) = re.findall(r"```json\n(.*?)```", COMMANDS, re.DOTALL)
    example = json.loads(block)
    answer = await served.fetch_answer("rest", "signals_get_signals", ticker="ETH", limit=1)
    event = build_event(answer["signals"][0], answer["meta"])
    assert example["type"] == f"signal.{event['tier']}"
    assert example["timestamp"] == example["data"]["created_at"]
    assert list(example["data"]) == list(event)
    assert example["data"]["meta"] == event["meta"]


SECURITY = (ROOT / "SECURITY.md").read_text()
PROMISES = re.findall(
    r"^\| (?!promise|---)(.+) \| (.+) \|$",
    SECURITY.split("## Promises")[1].split("\n## ")[0],
    re.MULTILINE,
)
ATTACKS = SECURITY.split("## Attacks")[1].split("\n## ")[0]


@pytest.mark.clause("documents")
def test_every_promise_names_test_files_that_exist():
    assert len(PROMISES) > 10
    for promise, tests_by_promise in PROMISES:
        files = re.findall(r"`(tests/[\w/]+/test_\w+\.py)`", tests_by_promise)
        assert ", ".join(f"`{file}`" for file in files) == tests_by_promise, promise
        for file in files:
            assert "\ndef test_" in (text := (ROOT / file).read_text()) or "async def test_" in text


@pytest.mark.clause("documents")
def test_every_attack_names_a_test_that_exists():
    attacks = re.findall(r"^\| .+ \| `(test_\w+)` \|$", ATTACKS, re.MULTILINE)
    assert len(attacks) == len(re.findall(r"^\| ", ATTACKS, re.MULTILINE)) - 1 > 20
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in attacks if f"def {name}(" not in tests] == []


@pytest.mark.clause("documents")
def test_every_security_test_is_named():
    ours = {f"tests/security/{path.name}" for path in (ROOT / "tests/security").glob("test_*.py")}
    assert ours - set(re.findall(r"tests/\w+/\w+\.py", SECURITY)) == set()


@pytest.mark.clause("documents")
def test_the_figures_of_the_security_page_match_the_code():
    assert f"waits for {DEFAULT_IDLE_S} seconds" in SECURITY
    assert f"trailers of a body have {MAX_FRAMING_BYTES >> 10} KiB" in SECURITY
    assert f"{RESERVED_DESCRIPTORS} files are reserved" in SECURITY
    assert f"over {MAX_BODY_BYTES >> 10} KiB" in SECURITY
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text()


FRAMES, CLIENT = re.findall(r"```python\n(.*?)```", COMMANDS, re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"


async def run_recipe(
    recipe: str, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Run the recipe with the address and a key of a service; return its variables."""
    monkeypatch.setenv("SIGNALS_API_KEY", service.api_key)
    assert ADDRESS in recipe
    names: dict[str, Any] = {}
    # The service needs this thread to answer.
    await asyncio.to_thread(exec, recipe.replace(ADDRESS, service.base_url), names)
    return names


@pytest.mark.clause("documents")
async def test_the_frames_have_every_change_once_in_order(
    served_alone: RunningService, monkeypatch: pytest.MonkeyPatch
):
    flips = make_flips(NOON + HOUR_MS, 450)
    await served_alone.market.commit(make_batch(NOON + HOUR_MS, flips))
    names = await run_recipe(FRAMES, served_alone, monkeypatch)
    in_pandas, in_polars = names["in_pandas"], names["in_polars"]
    ids = in_pandas["id"].tolist()
    # Before them are the changes of BTC that the store was seeded with.
    assert ids[-225:] == [flip.id for flip in flips if flip.ticker == "BTC"]
    assert len(ids) == len(set(ids)) == 225 + 4
    assert in_polars["id"].to_list() == ids
    assert in_pandas["created_at"].is_monotonic_increasing
    assert str(in_pandas["created_at"].dt.tz) == in_polars["created_at"].dtype.time_zone == "UTC"
    assert in_polars.select("from", "to").rows() == [
        (row["transition.from"], row["transition.to"]) for _, row in in_pandas.iterrows()
    ]
    assert len(FRAMES.splitlines()) <= 12


@pytest.mark.clause("documents")
async def test_a_client_from_the_openapi_document_reads_the_service(
    served_alone: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    [line] = re.findall(r"^openapi-python-client .*$", COMMANDS, re.MULTILINE)
    folder = Path(sys.executable).parent
    process = await asyncio.create_subprocess_exec(
        *shlex.split(f"{folder}/{line.replace(ADDRESS, served_alone.base_url)}"),
        cwd=tmp_path,
        # It formats what it writes.
        env={"PATH": f"{folder}:/usr/bin:/bin"},
    )
    assert await process.wait() == 0
    monkeypatch.syspath_prepend(tmp_path)
    names = await run_recipe(CLIENT, served_alone, monkeypatch)
    answer = await served_alone.fetch_answer("mcp", "signals_get_confluence", min_agree=5)
    assert names["agreeing"] == {one["ticker"]: one["agree"] for one in answer["results"]}
    assert names["agreeing"]


INDICATORS_PAGE = (ROOT / "docs" / "indicators.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in INDICATORS_PAGE.split("\n## ")[1:]}
# Derived from other parameters.
NO_PARAMETERS = {*vars(contract), "SPEEDS"}
# Its event needs the bands of the previous bar, its values only those of this bar.
LATER = {"reversals": 1}


def figures(text: str) -> set[float]:
    """Return every number in a text, including fractions."""
    found = {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", text)}
    return found | {int(a) / int(b) for a, b in re.findall(r"(\d+)/([1-9]\d*)", text)}


def parameters(indicator: Indicator) -> Iterator[tuple[str, float]]:
    """Yield the name and value of every number that a module defines."""
    for name, value in vars(sys.modules[type(indicator).__module__]).items():
        if name.isupper() and name not in NO_PARAMETERS:
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, int | float):
                    yield name, float(one)


@pytest.mark.clause("indicators")
@pytest.mark.parametrize("indicator", INDICATORS, ids=[one.id for one in INDICATORS])
def test_the_section_of_an_indicator_has_its_names_parameters_and_sources(
    indicator: Indicator,
) -> None:
    text = SECTIONS[indicator.name]
    assert f"`{indicator.id}`, version {indicator.version}" in text
    given = list(parameters(indicator))
    assert given
    assert {name for name, value in given if value not in figures(text)} == set()
    source = sys.modules[type(indicator).__module__].__doc__ or ""
    assert set(re.findall(r"\((\d{4})\)", source)) <= set(re.findall(r"\((\d{4})\)", text))


def first_value(indicator: Indicator) -> int:
    """Return the number of the first bar on which every raw value is defined."""
    carry, nothing = indicator.start(1), np.array([np.nan])
    for number in range(1, contract.WARMUP):
        close = np.array([100.0 + number % 7])
        bar = Bar(close, close + 1.0, close - 1.0, close, close, nothing)
        if not np.isnan(list(advance_bar(indicator, carry, bar).values())).any():
            return number
    raise AssertionError(f"{indicator.id} has no value during the warm-up")


@pytest.mark.clause("indicators")
@pytest.mark.parametrize("indicator", INDICATORS, ids=[one.id for one in INDICATORS])
def test_the_first_value_comes_at_the_documented_bar(indicator: Indicator) -> None:
    (expected,) = re.findall(r"\*\*First value\*\* on bar (\d+)\.", SECTIONS[indicator.name])
    assert int(expected) == first_value(indicator) + LATER.get(indicator.id, 0)


@pytest.mark.clause("indicators")
def test_the_warm_up_and_the_zero_divisor_are_those_of_the_code() -> None:
    shared = SECTIONS["Rules for all indicators"]
    assert {contract.WARMUP, contract.WARMUP + 1, contract.ZERO_DIVISOR} <= figures(shared)


@pytest.mark.clause("indicators")
def test_the_section_of_the_alert_engines_has_their_actions_stop_and_cooldown() -> None:
    text = SECTIONS["The alert engines"]
    assert all(f"`{action}`" in text for action in CURRENT_ACTIONS)
    assert f"{rules.STOP_ATRS:.0f} ATR({rules.ATR_PERIOD})" in text
    hours = COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S["4h"] // 3600
    days = COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S["1d"] // 86_400
    expected = f"per {COOLDOWN_CANDLES} candles: {hours} hours on 4h, {days} days on 1d"
    assert expected in " ".join(text.split())


PROOF_PAGE = (ROOT / "docs" / "proof.md").read_text()
SCENES = dict(re.findall(r"<!-- scene: (\w+) -->\n```text\n(.*?)```", PROOF_PAGE, re.DOTALL))
SQL = {
    name: code
    for code, name in re.findall(
        r"```sql\n(.*?)```\n\n<!-- scene: (\w+) -->", PROOF_PAGE, re.DOTALL
    )
}
BASE_URL = "https://signals.example"
HOURS, LAST_DAY = 400, 24
MASKS = {
    r"\+[0-9a-f]{8}\+[A-Za-z0-9+/]{44}": "+KEYID+KEY",
    r"[A-Za-z0-9+/]{102}==": "TIMED SIGNATURE",
    r"[A-Za-z0-9+/]{91}=": "SIGNATURE",
    r"[A-Za-z0-9+/]{43}=": "ROOT",
    r"at \d{4}-\d\d-\d\d \d\d:\d\d UTC": "at DATE UTC",
    r"in \S+/evidence-\S+": "in STATE/evidence-TIME.json",
}


def mask(text: str) -> str:
    for pattern, name in MASKS.items():
        text = re.sub(pattern, name, text)
    return text


@dataclass(frozen=True)
class Operator:
    """A service in a folder, on bars outside of it, and the record of its customer."""

    folder: Path
    bars: Path

    def record_hours(self, count: int) -> None:
        rows = make_bars("BTC", list_opens(DENSE, DENSE + HOURS * 3600))
        write_bars(self.bars, "BTC", rows[:count])

    def verify(self) -> str:
        """Start the service, verify it, and return what the command prints."""
        source = f"files:{self.bars}"
        with served_process(self.folder, source=source, base_url=BASE_URL, billing="off") as (
            address,
            _,
        ):
            api_key = create_key(self.folder)
            state = str(self.folder / "state")
            done = run_signals(
                self.folder, "verify", "--url", address, "--state", state, api_key=api_key
            )
        return mask(f"{done.stdout.replace(address, BASE_URL)}(exit status {done.returncode})\n")

    def restore(self, backup: Path) -> None:
        for path in self.folder.glob("signals.db*"):
            if not path.name.endswith("log-key.json"):
                path.unlink()
        assert run_signals(self.folder, "restore", str(backup)).returncode == 0


@pytest.fixture(scope="module")
def verified(tmp_path_factory) -> Operator:
    """A service whose recording ends a day early, which a customer has verified."""
    operator = Operator(tmp_path_factory.mktemp("service"), tmp_path_factory.mktemp("bars"))
    operator.record_hours(HOURS - LAST_DAY)
    assert operator.verify() == mask(SCENES["first"])
    return operator


@pytest.fixture
def operator(verified, tmp_path) -> Iterator[Operator]:
    """A copy of that service and of its customer's record."""
    yield Operator(Path(shutil.copytree(verified.folder, tmp_path / "service")), verified.bars)
    verified.record_hours(HOURS - LAST_DAY)


@pytest.mark.clause("verify", "documents")
@pytest.mark.usefixtures("use_single_ca")
def test_a_change_by_the_operator_prints_what_the_page_shows(operator):
    with closing(sqlite3.connect(operator.folder / "signals.db")) as db:
        db.executescript(SQL["price"])
    assert operator.verify() == mask(SCENES["price"])


@pytest.mark.clause("verify", "documents")
@pytest.mark.usefixtures("use_single_ca")
def test_a_restored_backup_and_a_new_log_end_as_the_page_says(operator, tmp_path):
    backup = tmp_path / "backup"
    assert run_signals(operator.folder, "backup", str(backup)).returncode == 0
    operator.record_hours(HOURS)
    assert operator.verify().endswith("verified\n(exit status 0)\n")
    operator.restore(backup)
    printed = operator.verify()
    assert "The log is not signed at the moment: the first 31 leaves are not those that" in printed
    assert printed.endswith("not verified\n(exit status 2)\n")
    settings = {"base_url": BASE_URL, "billing": "off"}
    assert run_signals(operator.folder, "log", "restart", **settings).returncode == 0
    printed = operator.verify()
    assert "the key of the log has changed" in printed
    assert "3 of 30 verified rows have lost their leaf" in printed
    assert printed.endswith("findings\n(exit status 1)\n")


SPECIFICATION = read_specification()
SENTENCES = SPECIFICATION.clauses | SPECIFICATION.promises


@pytest.mark.clause("tests")
def test_every_test_cites_a_clause_and_every_clause_has_a_test():
    tests_by_id, wrong = find_clause_tests()
    assert wrong == []
    assert tests_by_id.keys() == SENTENCES.keys()


@pytest.mark.clause("tests")
def test_every_clause_lies_in_a_titled_section_and_no_two_say_the_same():
    assert {id_.rpartition(".")[0] for id_ in SPECIFICATION.clauses} <= SPECIFICATION.titles.keys()
    texts = Counter(text.casefold() for text in SENTENCES.values())
    assert [text for text, count in texts.items() if count > 1] == []
