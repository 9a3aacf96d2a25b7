# Every target sets itself up: a virtual environment in .venv, made once and again when pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CPU build of torch is enough for tests and the demo. If this version cannot be had, pip takes what pyproject allows.
TORCH ?= torch==2.13.0

.PHONY: help demo test test-all chaos fuzz lint docs dist bench clean
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet "$(TORCH)" || echo "| $(TORCH) cannot be had here: taking the default build"
	$(BIN)/pip install --quiet -e '.[test]'
	touch $@

$(VENV)/.linters: $(VENV)/.installed
	$(BIN)/pip install --quiet -e '.[lint]'
	touch $@

demo: $(VENV)/.installed  ## train and try a small English-Romanian model (about three minutes on two cores)
	$(BIN)/lamina demo

# One thread each: the tests share the cores already.
WORKERS ?= 2
test: $(VENV)/.installed  ## run the tests, two files at a time
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

$(VENV)/.extras: $(VENV)/.installed
	$(BIN)/pip install --quiet -e '.[browser,notebook,wandb]'
	$(BIN)/pip install --quiet triton || echo "| triton cannot be had here: its interpreter runs no kernels"
	touch $@

test-all: $(VENV)/.extras  ## also run what needs a browser or a notebook kernel; what is missing skips with its reason
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "extra or not extra" -rs

chaos: $(VENV)/.installed  ## kill, damage, starve and signal training runs by the hundred (half an hour on two cores)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/chaos.py

fuzz: $(VENV)/.installed  ## feed tens of thousands of broken files to every reader (five to fifteen minutes)
	LAMINA_FUZZ_INPUTS=2000 $(BIN)/python -m pytest tests/fuzz

lint: $(VENV)/.linters  ## check style and types, and that installed packages fit each other
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pip check

$(VENV)/.site: $(VENV)/.installed
	$(BIN)/pip install --quiet -e '.[docs]'
	touch $@

docs: $(VENV)/.site  ## write the generated pages of docs/ and build the site in build/site
	$(BIN)/python tools/write_docs.py docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

dist: $(VENV)/.installed  ## build sdist and wheel in dist/
	$(BIN)/pip install --quiet build
	$(BIN)/python -m build --outdir dist

# Small models and little data, to see that all works; docs/performance.md has the commands whose figures mean something.
QUICK := --max-tokens 512 --vocabulary 2000 --pairs 4000 --seconds 1
bench: $(VENV)/.installed  ## a quick round of every benchmark on made-up data (under two minutes on two cores)
	$(BIN)/python benchmarks/preprocess.py --lines 50000 --repeat 1
	$(BIN)/python benchmarks/train.py $(QUICK) --technique plain,admin,fusion,layerdrop-0.5,all
	$(BIN)/python benchmarks/memory.py $(QUICK)
	$(BIN)/python benchmarks/depth.py $(QUICK) --layers 2-2,6-6
	$(BIN)/python benchmarks/scaling.py $(QUICK) --max-tokens 256,1024
	$(BIN)/python benchmarks/layerdrop.py --layers 6 --width 64 --max-tokens 256 --pairs 2000 --rounds 2
	$(BIN)/python benchmarks/captured.py --layers 2 --width 64 --max-tokens 256 --lines 2000 --rounds 2
	$(BIN)/python benchmarks/fusion.py --arch tiny --vocabulary 2000 --max-tokens 256 --batch-size 4 --rounds 2
	$(BIN)/python benchmarks/decode.py --batch-size 32 --sentences 64 --rounds 1
	$(BIN)/python benchmarks/cpu.py train --arch tiny --max-tokens 256 --vocabulary 2000 --rounds 2
	$(BIN)/python benchmarks/cpu.py decode --arch tiny --sentences 32 --rounds 1
	$(BIN)/python benchmarks/startup.py --lines 10000 --rounds 1

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache build dist src/*.egg-info
