#!/bin/sh
# Break the changed files line by line, and list the changes that no test notices:
# `tools/mutate.sh TESTS [REVISION]`, such as `tools/mutate.sh tests/serving main`.
#
# cosmic-ray changes files in place, so it works on a copy of the tree.
set -eu

tests=$1
files=$(git diff --name-only --diff-filter=d "${2:-HEAD~1}" -- '*.py' ':!tests' ':!tools' ':!bench' ':!evals')
[ -n "$files" ] || { echo "no file of the product changed since ${2:-HEAD~1}" >&2; exit 1; }
python=$PWD/.venv/bin
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
cd "$copy"

cat > mutate.toml <<TOML
[cosmic-ray]
module-path = [$(printf '"%s", ' $files)]
timeout = 300.0
excluded-modules = []
test-command = "env PYTHONPATH=$copy $python/python -m pytest -q -x -m 'not prove' $tests"

[cosmic-ray.distributor]
name = "local"
TOML
"$python/cosmic-ray" init mutate.toml mutate.sqlite
"$python/cosmic-ray" exec mutate.toml mutate.sqlite
"$python/cr-report" mutate.sqlite --surviving-only --show-diff
