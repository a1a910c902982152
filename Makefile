# Every target creates or reuses .venv and installs only what it needs.
# The second run of a target skips the installation unless pyproject.toml or constraints.txt changed.

PYTHON ?= python3
ARGS   ?=
ONLY   ?=

export NO_MKDOCS_2_WARNING := 1

BIN  := .venv/bin
CORE := .venv/.installed-core
DEV  := .venv/.installed-dev
# The build backend is pinned too. Older pips read PIP_CONSTRAINT for that, newer ones PIP_BUILD_CONSTRAINT.
PIP  := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
        $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# curvlinops, which the tests of K-FAC compare with, asks for a torchvision that nothing here uses and that breaks
# transformers unless it fits torch. What it does import is in the extra "test".
NO_DEPS := curvlinops-for-pytorch

.DEFAULT_GOAL := help
.PHONY: fuzz help demo page test test-page test-shapes test-all lint spec bench docs dist try-readme notebooks clean

help: ## say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

demo: $(CORE) ## train one elastic text model (four minutes), print and draw all its sizes
	@$(BIN)/continua demo $(ARGS)

# Compiled files are kept whatever the surroundings say: tests start the interpreter a few dozen times.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
SHAPES := CONTINUA_SHAPES=1 $(PYTEST) -m 'shapes and not slow' tests/laws tests/models

test: $(DEV) ## run the quick tests (ARGS='-k attention' for some, ARGS='-m slow' for the slow ones)
	@$(PYTEST) $(ARGS)

test-shapes: $(DEV) ## run the laws and the special cases with every shape and type checked at run time
	@$(SHAPES) $(ARGS)

# A browser of the machine is used; what playwright would download is not needed. CONTINUA_BROWSER names another one.
test-page: $(DEV) ## open the studio in a real browser and test its arithmetic (two minutes)
	@if command -v npm >/dev/null; then $(NPM) install --no-save --silent && $(NPM) test --silent; \
	  else echo "no npm here: the arithmetic of the page is not tested by vitest"; fi
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -rs -m page tests/studio $(ARGS)

# "npm ci" wants the packages of every platform in the lock file; --no-save installs what it says and writes nothing.
NPM := npm --prefix page --no-audit --no-fund

page: ## build the studio's page into the package (needs node 20 and npm; using it needs neither)
	@$(NPM) install --no-save --silent
	@$(NPM) run build --silent

test-all: $(DEV) ## run every test: the quick and the slow ones, then the shapes
	@$(PYTEST) -m '' $(ARGS)
	@$(SHAPES) $(ARGS)

fuzz: $(DEV) ## run 50,000 cases of the fuzzer on two processes (half an hour); ARGS='--first 50000' for others
	@mkdir -p runs
	@$(BIN)/python tools/fuzz.py --cases 50000 --jobs 2 --progress --json runs/fuzz.json $(ARGS)

lint: $(DEV) ## ruff, mypy and strict builds of the docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy continua
	$(BIN)/zensical build --strict -f mkdocs.yml
	$(BIN)/mkdocs build --strict -q -d site

spec: $(DEV) ## list the specification items and how many tests carry each
	@$(BIN)/python tools/spec.py

# A peer that cannot be installed is named as absent.
PEERS := $(PIP) -e '.[bench]' || true

bench: $(DEV) ## measure speed and bytes beside plain torch and Hugging Face (fifteen minutes); ONLY=fields runs one script
ifneq ($(ONLY),)
	@test -f benchmarks/$(ONLY).py || { echo "There is no benchmarks/$(ONLY).py. docs/benchmarks/index.md names every script."; exit 1; }
	@$(if $(filter depth,$(ONLY)),$(PEERS);) OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$(ONLY).py $(ARGS)
else
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/special_case.py $(ARGS)
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/family.py
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/complexity.py
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/memory.py
	@$(PEERS); OMP_NUM_THREADS=1 $(BIN)/python benchmarks/depth.py
endif

docs: $(DEV) ## build the documentation into site/
	@$(BIN)/mkdocs build --strict -q -d site
	@echo "documentation built: open site/index.html"

dist: $(BIN)/pip ## build the wheel and the source distribution into dist/
	@$(PIP) hatchling
	@rm -rf dist
	@$(BIN)/python -m hatchling build -d dist

try-readme: $(DEV) ## run every command and block of README.md and docs/start from an empty folder (three minutes)
	@$(BIN)/python tools/try_readme.py $(ARGS)

notebooks: $(DEV) ## write notebooks/ anew from the tours in examples/
	@$(BIN)/python tools/notebooks.py

clean: ## remove caches and built files; .venv stays
	@rm -rf site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Continua needs Python 3.11 or newer, got $$($(PYTHON) --version 2>&1). Name a newer one: make PYTHON=python3.11"; exit 1; }
	@echo "creating .venv"
	@$(PYTHON) -m venv .venv \
	  || { echo "Python could not create .venv. Install its venv module (on Debian: apt install python3-venv) and try again."; exit 1; }

# The demo compares with Hugging Face, so the core comes with it. A development install contains both: it marks both.
$(CORE): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing Continua into .venv (about two minutes the first time)"
	@$(PIP) -e '.[hf]'
	@touch $(CORE)

$(DEV): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing Continua and its development tools into .venv (about two minutes the first time)"
	@$(PIP) -e '.[dev]'
	@$(PIP) --no-deps $(NO_DEPS)
	@touch $(CORE) $(DEV)
