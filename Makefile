# Two commands on a fresh machine: `make demo` and `make test`. Both make their own .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types docs bench clean

demo: $(VENV)/.core
	$(BIN)/maskwitness demo --output demo

test: $(VENV)/.test
	$(BIN)/python -m pytest

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --editable '.[itk]' --group test
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

lint types docs: $(VENV)/.dev
	$(BIN)/python -m nox --session $@ --no-venv

bench: $(VENV)/.core
	$(BIN)/maskwitness bench scan

clean:
	rm -rf $(VENV) .nox site dist
