"""The clauses of the contract with users, the tests that cite them, and the page made from both.

`docs/clauses/*.toml` holds the clauses. Tests cite them with `@pytest.mark.clause(id, ...)`, each
test by itself or a whole module at once. `docs/clauses/README.md` describes the format.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

ROOT = Path(__file__).parents[1]
CLAUSES_FOLDER = ROOT / "docs" / "clauses"
DECISIONS_PAGE = ROOT / "docs" / "decisions.md"


class Change(BaseModel):
    """A pin: one line of a file, and a replacement that breaks the clause."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    old: str
    new: str

    @model_validator(mode="after")
    def _check_one_line(self) -> "Change":
        if "\n" in self.old + self.new or self.old == self.new:
            raise ValueError(f"{self.file}: a change must replace text within one line")
        return self

    def render_changed_file(self, root: Path) -> str:
        """Return the text of the file with the change made.

        ValueError if `old` does not occur exactly once, or if the result is not valid Python.
        """
        text = (root / self.file).read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has this text {count} times, not once: {self.old}")
        changed = text.replace(self.old, self.new)
        # A syntax error would fail every test, so it would prove nothing about the clause.
        if self.file.endswith(".py"):
            try:
                ast.parse(changed)
            except SyntaxError as error:
                raise ValueError(f"{self.file} is not valid Python with: {self.new}") from error
        return changed


class Clause(BaseModel):
    """One sentence or two of the contract, and exactly one of four kinds of evidence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    says: str
    change: Change | None = None
    same_as: tuple[str, ...] = ()
    decision: str | None = None
    untested: str | None = None

    @model_validator(mode="after")
    def _check_exactly_one_evidence(self) -> "Clause":
        evidence = [self.change, self.same_as, self.decision, self.untested]
        if sum(map(bool, evidence)) != 1:
            raise ValueError(f"{self.id} needs exactly one of: change, same_as, decision, untested")
        return self

    @property
    def section(self) -> str:
        """The id without its last number, such as 4.9 for 4.9.12."""
        return self.id.rpartition(".")[0]


class Promise(BaseModel):
    """A promise about the whole service, which tests may cite instead of a clause."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    says: str


@dataclass(frozen=True)
class Specification:
    """All clauses by id, the titles of chapters and sections, and the promises beyond them."""

    clauses: tuple[Clause, ...]
    titles: dict[str, str]
    promises: tuple[Promise, ...]

    @property
    def ids(self) -> set[str]:
        """All ids that a test may cite."""
        return {clause.id for clause in self.clauses} | {promise.id for promise in self.promises}


@dataclass
class ClauseTests:
    """The tests that cite one clause, and the modules that cite it for all of their tests."""

    tests: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[str]:
        yield from (*self.tests, *self.modules)


def read_specification(folder: Path = CLAUSES_FOLDER) -> Specification:
    """Load all clause files of a folder; ValueError names an entry that is not valid."""
    clauses: list[Clause] = []
    promises: list[Promise] = []
    titles: dict[str, str] = {}
    for path in sorted(folder.glob("*.toml")):
        text = path.read_text()
        data: dict[str, Any] = tomllib.loads(text)
        titles |= data.get("titles", {})
        clauses += parse_clauses(text)
        promises += map(Promise.model_validate, data.get("promise", ()))
    clauses.sort(key=lambda clause: _split_id(clause.id))
    return Specification(tuple(clauses), titles, tuple(promises))


def parse_clauses(text: str) -> list[Clause]:
    """Return the clauses of one file in its order; ValueError names one that is not valid."""
    return [Clause.model_validate(entry) for entry in tomllib.loads(text).get("clause", ())]


def find_clause_tests(root: Path = ROOT) -> tuple[dict[str, ClauseTests], list[str]]:
    """Return the tests of each cited id, and the functions whose citations are wrong.

    A test without a citation is wrong, and so is a function that cites an id but is not a test.
    """
    # Sources are parsed, not imported: the mutants run needs the citations without side effects.
    tests_by_clause: dict[str, ClauseTests] = {}
    misnamed_tests: list[str] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        module = ast.parse(path.read_text())
        module_ids = set(_extract_ids(_iterate_module_marks(module)))
        for id_ in module_ids:
            tests_by_clause.setdefault(id_, ClauseTests()).modules.append(name)
        for function in _iterate_functions(module):
            function_ids = set(_extract_ids(function.decorator_list))
            for id_ in function_ids:
                tests_by_clause.setdefault(id_, ClauseTests()).tests.append(
                    f"{name}::{function.name}"
                )
            is_test = function.name.startswith("test_")
            if (is_test and not function_ids | module_ids) or (function_ids and not is_test):
                misnamed_tests.append(f"{name}::{function.name}")
    return tests_by_clause, misnamed_tests


def render_coverage(specification: Specification, tests_by_clause: dict[str, ClauseTests]) -> str:
    """Return a table of clauses, tests and evidence for each section of the contract."""
    anchors = _list_decision_anchors()
    parts = []
    for section, clauses in _group_by_section(specification.clauses).items():
        table = _render_table(_format_row(clause, tests_by_clause, anchors) for clause in clauses)
        parts.append(f"## {section} {specification.titles[section]}\n\n{table}")
    promise_table = _render_table(
        (promise.id, promise.says, _format_tests(tests_by_clause.get(promise.id, ClauseTests())))
        for promise in specification.promises
    )
    return "\n".join([*parts, f"## Promises\n\n{promise_table}"])


def _group_by_section(clauses: Iterable[Clause]) -> dict[str, list[Clause]]:
    sections: dict[str, list[Clause]] = {}
    for clause in clauses:
        sections.setdefault(clause.section, []).append(clause)
    return sections


def _list_decision_anchors() -> dict[str, str]:
    """Return the anchor of each decision, by its title without the number."""
    # Clauses name titles without numbers, because a deleted record renumbers those after it.
    headings = re.findall(r"^### (\d+\. (.+))$", DECISIONS_PAGE.read_text(), re.MULTILINE)
    return {title: _build_anchor(heading) for heading, title in headings}


def _build_anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _format_row(
    clause: Clause, tests_by_clause: dict[str, ClauseTests], anchors: dict[str, str]
) -> tuple[str, str, str]:
    formatted_tests = _format_tests(tests_by_clause.get(clause.id, ClauseTests()))
    evidence = _describe_evidence(clause, anchors)
    return clause.id, clause.says, "<br>".join(filter(None, (formatted_tests, evidence)))


def _describe_evidence(clause: Clause, anchors: dict[str, str]) -> str:
    if clause.change:
        file, old, new = clause.change.file, clause.change.old, clause.change.new
        return f"Fails if {_format_code(old)} in {file} becomes {_format_code(new)}"
    if clause.same_as:
        return f"Same as {', '.join(clause.same_as)}"
    if clause.decision:
        anchor = anchors.get(clause.decision, "")
        return f"Decision: [{clause.decision}](../decisions.md#{anchor})"
    return f"Not tested: {clause.untested}"


def _format_tests(clause_tests: ClauseTests) -> str:
    """List the tests by module, without the folder `tests` that they share."""
    names_by_module: dict[str, list[str]] = {module: [] for module in clause_tests.modules}
    for test in clause_tests.tests:
        module, _, name = test.partition("::")
        names_by_module.setdefault(module, []).append(name)
    return "<br>".join(
        f"{module.removeprefix('tests/')}{': ' if names else ''}{', '.join(names)}"
        for module, names in names_by_module.items()
    )


def _format_code(text: str) -> str:
    # A pipe ends a table cell even within code, and a code span that holds a backtick needs two.
    text = text.strip().replace("|", "\\|")
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else "nothing"


def _render_table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = [("clause", "text", "tests and evidence"), ("---",) * 3, *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _iterate_functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _iterate_module_marks(module: ast.Module) -> Iterator[ast.expr]:
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from node.value.elts if isinstance(node.value, ast.List) else [node.value]


def _extract_ids(marks: Iterable[ast.expr]) -> Iterator[str]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.clause":
            yield from (ast.literal_eval(argument) for argument in mark.args)


def _split_id(id_: str) -> tuple[int, ...]:
    # As numbers, so that 4.10 follows 4.9.
    return tuple(map(int, id_.split(".")))
