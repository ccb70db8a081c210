#!/bin/sh
# Break files line by line, list the changes that no test notices, and print the share that is noticed:
# `tools/mutate.sh TESTS WHAT [COUNT]`, such as `tools/mutate.sh tests/serving main`.
#
# WHAT is a revision, of which the changed files are taken, or a file or folder. COUNT limits the
# changes to a sample, always the same. cosmic-ray changes files in place, so it works on a copy.
set -eu

tests=$1
what=$2
count=${3:-}
if [ -e "$what" ]; then
  files=$(git ls-files "$what" | grep '\.py$')
else
  files=$(git diff --name-only --diff-filter=d "$what" -- '*.py' ':!tests' ':!tools' ':!bench' ':!evals')
fi
[ -n "$files" ] || { echo "no file of the product changed since $what" >&2; exit 1; }
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
test-command = "env PYTHONPATH=$copy $python/python -m pytest -q -x -p no:cacheprovider -m 'not prove' $tests"

[cosmic-ray.distributor]
name = "local"
TOML
"$python/cosmic-ray" init mutate.toml mutate.sqlite
# Tests that fail without a change would seem to notice every change.
"$python/cosmic-ray" baseline mutate.toml
[ -z "$count" ] || "$python/python" - "$count" <<'PYTHON'
import random, sqlite3, sys

db = sqlite3.connect("mutate.sqlite")
place = "module_path, start_pos_row, start_pos_col, operator_name, operator_args, occurrence"
jobs = [job for (job,) in db.execute(f"SELECT job_id FROM mutation_specs ORDER BY {place}")]
kept = set(random.Random(1).sample(jobs, min(int(sys.argv[1]), len(jobs))))
for table in ("mutation_specs", "work_items"):
    db.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(job,) for job in jobs if job not in kept])
db.commit()
PYTHON
"$python/cosmic-ray" exec mutate.toml mutate.sqlite
"$python/cr-report" mutate.sqlite --surviving-only --show-diff
"$python/cr-rate" mutate.sqlite | awk '{ printf "score: %.0f %% of the changes are noticed\n", 100 - $1 }'
