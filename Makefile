# Two commands: `make demo` and `make test`. Both set up .venv first, with the versions in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install demo test lint types check clean

install: $(STAMP)

# uv installs in half a minute what takes pip minutes; it lives inside the venv, so nothing else is touched. Compiled at
# once, as every command imports much, and not every machine keeps what Python compiles.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --compile-bytecode --constraint constraints.txt --editable '.[dev,tiff]'
	touch $(STAMP)

demo: install
	$(BIN)/fewmask demo --out demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -n 2 --dist worksteal

clean:
	rm -rf .venv build dist src/*.egg-info
