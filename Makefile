# Every target works on a fresh machine with make and Python 3.11 or newer, with its venv module.
PYTHON ?= python3
# Another environment on request, such as make PYTHON=python3.12 VENV=.venv-3.12 test-fast.
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
UV := $(BIN)/uv pip
# The tests start many processes: without cached bytecode each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
# Empty unless PYTHON came from the command line or the environment.
REQUESTED := $(filter-out file,$(origin PYTHON))
RUNTIME := $(VENV)/installed
LIVE := $(VENV)/installed-live
DEV := $(VENV)/installed-dev
# Tests of the parts that depend on the version of Python: SQLite, asyncio, schemas, commands,
# processes. What is built of these, such as tools, pages and purchases, and PostgreSQL repeat them.
FAST := tests/compute/test_executor.py tests/mcp_server/test_endpoint.py \
  tests/mcp_server/test_protocol_legs.py tests/serving tests/service/commands/test_cli.py \
  tests/service/config tests/service/http tests/service/processes tests/store/sql tests/store/sqlite
LOCK := $(UV) compile --quiet --universal --generate-hashes --no-header --no-emit-index-url \
  --no-strip-extras pyproject.toml

.PHONY: serve live test test-fast prove screenshots mutants check coverage bench docs format wheel bundle lock FORCE

# FORCE checks the interpreter at every run. The stamps below are rebuilt only if it was recreated,
# because otherwise this file keeps its time.
$(VENV)/pyvenv.cfg: FORCE
	@tools/create_venv.sh "$(VENV)" "$(PYTHON)" "$(REQUESTED)"

# Most modules are never imported, so the others are compiled when they are.
$(RUNTIME): $(VENV)/pyvenv.cfg pyproject.toml requirements.lock
	$(PIP) install --no-compile --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

# uv installs several times as fast as pip, and environments share the files of its cache. The lock
# holds all that the service needs too.
$(DEV): $(VENV)/pyvenv.cfg pyproject.toml requirements.lock requirements-dev.lock
	sed -n '/^uv==/,/# via/p' requirements-dev.lock | $(PIP) install --require-hashes -r /dev/stdin
	$(UV) install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $(RUNTIME) $@

serve: $(RUNTIME)
	$(BIN)/signals serve

# All locks agree on every version, so none uninstalls what another one installed.
$(LIVE): $(RUNTIME) deploy/requirements-live.lock
	$(PIP) install --require-hashes -r deploy/requirements-live.lock
	touch $@

# Real prices, in a database of its own beside that of `make serve`, with the same API keys.
live: $(LIVE)
	$(BIN)/signals serve --live

test: $(DEV)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not prove"

test-fast: $(DEV)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not prove" -k "not postgres" $(FAST)

prove: $(DEV)
	$(BIN)/python -m pytest -n 6 --dist worksteal

# Also saves every page that the walk opens below .interop/screenshots, to look at.
screenshots: $(DEV)
	SCREENSHOTS=.interop/screenshots $(BIN)/python -m pytest tests/browser

# As in `make mutants TESTS=tests/serving SINCE=main`: breaks the lines of the files changed since.
# SINCE may also be a folder, such as serving. COUNT=60 takes a sample.
SINCE := HEAD~1
mutants: $(DEV)
	tools/mutate.sh "$(TESTS)" "$(SINCE)" "$(COUNT)"

coverage: $(DEV)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not prove" --cov --cov-report=term:skip-covered

check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV)
	$(BIN)/python -m bench --write

docs: $(DEV)
	$(BIN)/python -m tools.generate_docs

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# setuptools would add modules that an earlier build left in build/.
wheel: $(RUNTIME)
	rm -rf build
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

# URL=https://... is the address of the service that the bundle suggests.
bundle: $(RUNTIME)
	$(BIN)/python -m tools.build_bundle --url '$(URL)'

# Each lock starts from the one before, and keeps the versions it already names.
lock: $(DEV)
	$(LOCK) --group build -o requirements.lock
	$(LOCK) --group dev --extra live --extra distributed --extra import --extra notify -c requirements.lock -o requirements-dev.lock
	$(LOCK) --group build --extra live --extra notify -c requirements-dev.lock -o deploy/requirements-live.lock
