"""The pages of docs and SECURITY.md name only what exists, in the form that each of them has."""

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from service.config.settings import DEFAULT_IDLE_S
from service.http.server import MAX_FRAMING_BYTES, RESERVED_DESCRIPTORS
from service.terminal.deliveries import build_event
from serving.http import MAX_BODY_BYTES
from tests.support.running_service import RunningService
from tests.support.running_service import served as served
from tools.clauses import ROOT, read_specification
from web.docs import build_anchor

pytestmark = pytest.mark.clause("documents")


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PATH = r"[A-Za-z_]+(?:/[A-Za-z_]+)+(?:\.[a-z]+)?"
# Such as "`Purchases.claim` (`access/purchases.py`)"; a line may break between the two.
NAMED_IN_FILE = rf"`([A-Za-z_.]+)`\s+(?:\(|in\s+)`({PATH})`"


def test_every_path_of_the_architecture_exists():
    paths = re.findall(rf"`({PATH})`", ARCHITECTURE)
    assert len(paths) > 60
    templates = [path for path in paths if "NAME" in path]
    assert len(templates) == 6
    assert [path for path in paths if path not in templates and not (ROOT / path).exists()] == []


def test_every_name_of_the_architecture_is_defined_in_the_file_that_follows_it():
    named = re.findall(NAMED_IN_FILE, ARCHITECTURE)
    assert len(named) > 30
    assert [one for one in named if not defines(*one)] == []


def defines(name: str, path: str) -> bool:
    text = (ROOT / path).read_text()
    return all(
        re.search(rf"^ *(?:(class|(async )?def) {part}\b|{part}\b.* = )", text, re.MULTILINE)
        for part in name.split(".")
    )


GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
PLACES, TERMS = GLOSSARY.partition("## Market data")[::2]
TERM_ROWS = re.findall(r"^\| (.+?) \| (.+?) \| `(.+?)` \|$", TERMS, re.MULTILINE)


def test_every_place_of_the_glossary_exists():
    paths = re.findall(r"`([a-z_]+/[a-z_/.]+)`", GLOSSARY)
    assert len(paths) > len(TERM_ROWS)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_term_is_defined_in_the_file_of_its_row():
    named = [(name, path) for term, _, path in TERM_ROWS for name in re.findall(r"`(\w+)`", term)]
    assert len(named) > 50
    assert [one for one in named if not is_defined(*one)] == []


def test_every_term_has_one_row():
    counts = Counter(term for cells, _, _ in TERM_ROWS for term in cells.split(", "))
    assert [term for term, count in counts.items() if count > 1] == []
    assert len(TERM_ROWS) == len(re.findall(r"^\| .+ \|$", TERMS, re.MULTILINE)) - 6 >= 60


def is_defined(name: str, path: str) -> bool:
    defined = rf"^(class {name}\b|(async )?def {name}\b|{name}\b.* = )"
    return re.search(defined, (ROOT / path).read_text(), re.MULTILINE) is not None


CONTRACT = (ROOT / "docs" / "contract.md").read_text()
MAX_WORDS = 5000
# Sections 13 to 20 are one: the pages of a service.
SECTIONS_OF_PAGES = {str(number) for number in range(13, 21)}


def test_the_contract_is_one_short_page():
    shown = re.sub(r"<!--.*?-->|^#+|^- |---|\|", " ", CONTRACT, flags=re.MULTILINE)
    assert len(CONTRACT.split()) <= MAX_WORDS
    assert len(shown.split()) <= MAX_WORDS


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


def test_every_record_has_a_date_and_three_parts():
    assert len(DECIDED) == len(re.findall(r"^### ", DECISIONS, re.MULTILINE)) <= 50
    assert [int(number) for number, *_ in DECIDED] == list(range(1, len(DECIDED) + 1))


def test_every_record_is_short():
    sizes = {title: len(" ".join(parts).split()) for _, title, _, *parts in DECIDED}
    assert {title: size for title, size in sizes.items() if not 40 <= size <= 130} == {}


SOURCES = (ROOT / "docs" / "sources.md").read_text()
FAULTS = SOURCES.split("## When data are bad")[1].split("\n## ")[0]


def test_every_event_of_a_fault_is_written_by_the_service():
    rows = re.findall(r"^\| (?!fault|---).+ \| .+ \| (.+) \|$", FAULTS, re.MULTILINE)
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


AGENTS = (ROOT / "docs" / "agents.md").read_text()
CLIENTS = AGENTS.split("## Clients and frameworks")[1]
PINS = ROOT / "tests" / "interop"


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


def test_every_promise_names_test_files_that_exist():
    assert len(PROMISES) > 10
    for promise, tests_by_promise in PROMISES:
        files = re.findall(r"`(tests/[\w/]+/test_\w+\.py)`", tests_by_promise)
        assert ", ".join(f"`{file}`" for file in files) == tests_by_promise, promise
        for file in files:
            assert "\ndef test_" in (text := (ROOT / file).read_text()) or "async def test_" in text


def test_every_attack_names_a_test_that_exists():
    attacks = re.findall(r"^\| .+ \| `(test_\w+)` \|$", ATTACKS, re.MULTILINE)
    assert len(attacks) == len(re.findall(r"^\| ", ATTACKS, re.MULTILINE)) - 1 > 20
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in attacks if f"def {name}(" not in tests] == []


def test_every_security_test_is_named():
    ours = {f"tests/security/{path.name}" for path in (ROOT / "tests/security").glob("test_*.py")}
    assert ours - set(re.findall(r"tests/\w+/\w+\.py", SECURITY)) == set()


def test_the_figures_of_the_security_page_match_the_code():
    assert f"waits for {DEFAULT_IDLE_S} seconds" in SECURITY
    assert f"trailers of a body have {MAX_FRAMING_BYTES >> 10} KiB" in SECURITY
    assert f"{RESERVED_DESCRIPTORS} files are reserved" in SECURITY
    assert f"over {MAX_BODY_BYTES >> 10} KiB" in SECURITY


def test_the_readme_links_the_security_page():
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text()
