# Every target works on a fresh machine with python3 (3.11 or newer, with venv) and make.
PYTHON ?= python3
BIN := .venv/bin
# The tests start many processes: each would compile every module anew where none may be kept.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED := .venv/installed

.PHONY: serve test prove mutants check bench docs lock format

$(INSTALLED): pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(INSTALLED)

serve: $(INSTALLED)
	$(BIN)/signals serve

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not prove"

prove: $(INSTALLED)
	$(BIN)/python -m pytest -rP --junitxml=.interop/results.xml; status=$$?; \
	$(BIN)/python -m tools.interop_table .interop/results.xml && $(BIN)/python -m tools.mutants && exit $$status

mutants: $(INSTALLED)
	$(BIN)/python -m tools.mutants

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/python -m bench --write

docs: $(INSTALLED)
	$(BIN)/python -m tools.generate_docs

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:
	uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --extra dev pyproject.toml -o requirements.lock
