#!/bin/sh
# Create an environment in the current folder: `tools/create_venv.sh .venv PYTHON [REQUESTED]`.
#
# Keep one that works. Recreate one that doesn't: its interpreter is gone, too old or replaced by
# another version, or the folder was moved. With a non-empty REQUESTED, PYTHON was chosen by hand and
# its version must match too.
set -eu

venv=$1
python=$2
requested=${3:-}
needed=$(sed -n 's/^requires-python = ">=\(.*\)"$/\1/p' pyproject.toml)

fail() {
  echo "signals needs Python $needed or newer, and $python is $1;" \
    "install one or run make PYTHON=/path/to/python" >&2
  exit 1
}

# Print the version of interpreter $1 after running statement $2; print nothing if either fails.
read_version() {
  "$1" -c "$2; import sys; print('%d.%d' % sys.version_info[:2])" 2>/dev/null |
    grep -x '[0-9]*\.[0-9]*' || true
}

is_new_enough() {
  [ "${1%.*}" -gt "${needed%.*}" ] ||
    { [ "${1%.*}" -eq "${needed%.*}" ] && [ "${1#*.}" -ge "${needed#*.}" ]; }
}

check_python() {
  found=$(read_version "$python" pass)
  [ -n "$found" ] || fail "not a working Python"
  is_new_enough "$found" || fail "$found"
}

find_fault() {
  # pip's modules lie in a folder named after the version that created them, so importing them also
  # fails when bin/python now leads to another version.
  version=$(read_version "$venv/bin/python" 'import pip')
  if [ -z "$version" ]; then
    echo "its Python doesn't work"
  elif ! is_new_enough "$version"; then
    echo "its Python is $version"
  elif [ -n "$requested" ] && [ "$version" != "$found" ]; then
    echo "its Python is $version, not $found"
  # Scripts name their interpreter by its absolute path.
  elif ! grep -qF "$(pwd -P)/$venv/bin/python" "$venv/bin/pip" 2>/dev/null; then
    echo "it was moved"
  fi
}

[ -z "$requested" ] || check_python
if [ -e "$venv" ]; then
  fault=$(find_fault)
  [ -n "$fault" ] || exit 0
  check_python
  echo "recreating $venv: $fault" >&2
  rm -rf "$venv"
fi
check_python
"$python" -m venv "$venv"
