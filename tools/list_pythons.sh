#!/bin/sh
# List the other supported versions of Python on this machine: `tools/list_pythons.sh VERSION`.
#
# Print `VERSION PATH` for each version that pyproject.toml supports, except the given one. It is the
# first interpreter on PATH, or of pyenv, that can create environments. Report the unusable ones.
set -eu

PROBE='
import sys, sysconfig
try:
    import ensurepip, venv
except ImportError as error:
    print("it has no module", error.name)
else:
    if sys.version_info.releaselevel != "final":
        print("it is a pre-release")
    elif sysconfig.get_config_var("Py_GIL_DISABLED"):
        print("it is free-threaded")
'

find_python() {
  for folder in $PATH "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/*/bin; do
    python=$folder/python$1
    # Commands of pyenv exist for all its versions, and fail if theirs is not selected.
    [ -x "$python" ] && fault=$("$python" -c "$PROBE" 2>/dev/null) || continue
    [ -n "$fault" ] || { echo "$1 $python"; return; }
    echo "skipping $python: $fault" >&2
  done
}

supported=$(sed -n 's/^ *"Programming Language :: Python :: \(3\.[0-9]*\)",$/\1/p' pyproject.toml)
for version in $supported; do
  [ "$version" = "$1" ] || (IFS=: && find_python "$version")
done
