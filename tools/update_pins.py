"""Update the changes of `docs/clauses` after code has moved: `python -m tools.update_pins`.

If a change no longer fits, the program takes its line and the context at the base revision, and
aligns their tokens with those of every changed file. The best place gives the new line and names.
"""

import argparse
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tools.clauses import ROOT, Change, Clause, parse_clauses
from tools.pin_edits import NotUpdatedError, Place, find_edit, replace_change
from tools.token_alignment import Text, align

CONTEXT_TOKENS = 25
CANDIDATE_FILES = 24
MIN_EQUAL = 0.4  # share of the tokens of the line itself
LINE_WEIGHT, CONTEXT_WEIGHT = 3.0, 1.0
MIN_SIMILARITY = 0.5  # share of the score that equal tokens would have
MIN_LEAD = 0.5  # score by which the best place leads the next; below that, it would be a guess
MAX_COMMITS = 200
SOURCES = ("*.py", "*.sql", ":!tests", ":!tools", ":!docs", ":!bench")

Names = defaultdict[str, Counter[str]]


class Updater:
    """The files at the base and now, and the present name for each former name."""

    def __init__(self, root: Path, base: str) -> None:
        self._root, self._base = root, base
        self._texts: dict[tuple[str, str], Text] = {}
        # By file at the base; the entry "" is for all files.
        self._names: defaultdict[str, Names] = defaultdict(lambda: defaultdict(Counter))
        changed = self._git("diff", "-M", "--name-only", "--diff-filter=d", base)
        added = self._git("ls-files", "--others", "--exclude-standard")
        self._changed_files = {*changed.split(), *added.split()}
        renamed = self._git("diff", "-M", "--name-status", "--diff-filter=R", base).splitlines()
        self._renamed_files = dict(line.split("\t")[1:] for line in renamed)
        self._base_changes = {
            clause.id: clause.change
            for file in self._git("ls-tree", "--name-only", f"{base}:docs/clauses").split()
            if file.endswith(".toml")
            for clause in parse_clauses(self._read(f"docs/clauses/{file}", base))
            if clause.change
        }

    def has_base_changes(self) -> bool:
        """Return true if every change at the base fits the files at the base."""
        changes = self._base_changes.values()
        try:
            return all(self._read(c.file, self._base).count(c.old) == 1 for c in changes)
        except subprocess.CalledProcessError:  # a file is missing there
            return False

    def is_current(self, clause: Clause) -> bool:
        """Return true if the clause has no change, or one that fits and has no outdated name."""
        if not (change := clause.change):
            return True
        if not (self._root / change.file).exists():
            return False
        now = self._read(change.file)
        before = self._base_changes.get(clause.id)
        then = {*self._read(before.file, self._base).tokens} if before else set()
        old_names = then.union(self._gone_names) - {*now.tokens}
        return now.count(change.old) == 1 and old_names.isdisjoint(Text(change.new).tokens)

    def find_place(self, clause: Clause) -> Place:
        """Find the present place of the tokens of the clause's change at the base.

        NotUpdatedError if there is none, or if more than one is similar.
        """
        if not (change := self._base_changes.get(clause.id)):
            raise NotUpdatedError("the base has no change of this clause")
        text = self._read(change.file, self._base)
        start = text.index(change.old)
        end = start + len(change.old)
        touched = [n for n, (left, right) in enumerate(text.spans) if left < end and right > start]
        line = range(touched[0], touched[-1] + 1)
        window = range(
            max(0, line.start - CONTEXT_TOKENS), min(len(text.tokens), line.stop + CONTEXT_TOKENS)
        )
        tokens = text.tokens[window.start : window.stop]
        weights = [LINE_WEIGHT if number in line else CONTEXT_WEIGHT for number in window]
        places = []
        for file in self._list_candidates(change.file, Text(" ".join(tokens))):
            pairs, score, lead = align(tokens, self._read(file), weights)
            pairs = {window.start + then: now for then, now in pairs.items()}
            places.append(Place(change, line, file, pairs, score, lead))
        places.sort(key=lambda place: -place.score)
        if not places or places[0].score < MIN_SIMILARITY * sum(weights):
            raise NotUpdatedError(f"nothing is similar to: {change.old}")
        best, *others = places
        found = self._read(best.file).tokens
        equal = {n for n in line if n in best.pairs and found[best.pairs[n]] == text.tokens[n]}
        has_moved = best.file not in {change.file, self._renamed_files.get(change.file)}
        # Punctuation is similar everywhere. In another file, at least one word has to be equal.
        is_other = has_moved and not any(text.tokens[n].isidentifier() for n in equal)
        if is_other or len(equal) < MIN_EQUAL * len(line):
            raise NotUpdatedError(
                f"{best.file} has its place, but nothing similar to: {change.old}"
            )
        if min([best.lead, *(best.score - other.score for other in others)]) < MIN_LEAD:
            raise NotUpdatedError(
                f"more than one place, one in {best.file}, is similar to: {change.old}"
            )
        for then, now in best.pairs.items():
            for scope in (change.file, ""):
                self._names[scope][text.tokens[then]][found[now]] += 1
        return best

    def rewrite(self, place: Place) -> Change:
        """Return the change at its place, with the present names."""
        text = self._read(place.file)
        spans = {then: text.spans[now] for then, now in place.pairs.items()}
        start, end, insert = find_edit(place, text, spans)
        insert = self._rename(insert, place)
        line_start, line_end = text.rfind("\n", 0, start) + 1, f"{text}\n".index("\n", end)
        indented = line_start + len(text[line_start:]) - len(text[line_start:].lstrip(" "))
        inside = [spans[number] for number in place.line if number in spans]
        shortest = max(indented, min(inside[0][0], start)), min(line_end, max(inside[-1][1], end))
        # The shortest text that is unique in the file, so that later edits nearby do not matter.
        for left, right in (shortest, (indented, line_end), (line_start, line_end)):
            if text.count(text[left:right]) == 1:
                changed = text[left:start] + insert + text[end:right]
                updated = Change(file=place.file, old=text[left:right], new=changed)
                updated.render_changed_file(self._root)
                return updated
        raise NotUpdatedError(f"{place.file} has more than once: {text[line_start:line_end]}")

    def _rename(self, insert: str, place: Place) -> str:
        then, now = self._read(place.change.file, self._base), self._read(place.file)
        nearby: Names = defaultdict(Counter)
        for number, other in place.pairs.items():
            nearby[then.tokens[number]][now.tokens[other]] += 10 if number in place.line else 1

        def rename(match: re.Match[str]) -> str:
            word = match[0]
            known = nearby.get(word) or self._names[place.change.file].get(word)
            if not known and word not in now.tokens:
                known = self._names[""].get(word)
            if not known and word in self._gone_names:
                raise NotUpdatedError(f"no present name for {word} in: {place.change.new}")
            return known.most_common(1)[0][0] if known else word

        return re.sub(r"[^\W\d]\w*", rename, insert)

    @cached_property
    def _gone_names(self) -> set[str]:
        """The words that occur in the sources at the base but no longer now."""
        then = self._git("grep", "-ohw", r"[A-Za-z_]\w*", self._base, "--", *SOURCES)
        now = self._git("grep", "-ohw", "--untracked", r"[A-Za-z_]\w*", "--", *SOURCES)
        return {*then.split()} - {*now.split()}

    def _list_candidates(self, file: str, window: Text) -> list[str]:
        files = {f for f in (*self._changed_files, file) if Path(f).suffix == Path(file).suffix}
        files = {f for f in files if not f.startswith("tests/")}
        existing = sorted(f for f in files if (self._root / f).exists())
        existing.sort(key=lambda f: -len(window.trigrams & self._read(f).trigrams))
        return existing[:CANDIDATE_FILES]

    def _read(self, file: str, revision: str = "") -> Text:
        if (revision, file) not in self._texts:
            path = self._root / file
            text = self._git("show", f"{revision}:{file}") if revision else path.read_text()
            self._texts[revision, file] = Text(text)
        return self._texts[revision, file]

    def _git(self, *arguments: str) -> str:
        return _run_git(self._root, *arguments)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Update the changes that no longer fit; return 1 if some could not be updated."""
    parser = argparse.ArgumentParser(prog="python -m tools.update_pins", description=__doc__)
    parser.add_argument("--base", metavar="REV", help="a revision at which every change fits")
    updater = _open_base(root, parser.parse_args(arguments).base)
    places: list[tuple[Path, Clause, Place]] = []
    failures = []
    for path in sorted((root / "docs" / "clauses").glob("*.toml")):
        for clause in parse_clauses(path.read_text()):
            try:
                if not updater.is_current(clause):
                    places.append((path, clause, updater.find_place(clause)))
            except NotUpdatedError as error:
                failures.append(f"{clause.id}: {error}")
    for path, clause, place in places:
        try:
            change = updater.rewrite(place)
        except (NotUpdatedError, ValueError) as error:
            failures.append(f"{clause.id}: {error}")
        else:
            path.write_text(replace_change(path.read_text(), clause.id, change))
            print(f"{clause.id}: {change.file}: {change.old}  =>  {change.new}")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _open_base(root: Path, base: str | None) -> Updater:
    """Return the updater for a base: the named one, or the newest commit whose changes all fit."""
    if base:
        return Updater(root, base)
    for commit in _run_git(root, "rev-list", f"--max-count={MAX_COMMITS}", "HEAD").split():
        if (updater := Updater(root, commit)).has_base_changes():
            return updater
    raise SystemExit(
        f"at none of the last {MAX_COMMITS} commits do all changes fit; name one with --base"
    )


def _run_git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    raise SystemExit(main())
