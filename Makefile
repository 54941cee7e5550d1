# `make` does everything; `make help` lists the rest. Steps whose inputs have not changed are skipped.

PYTHON ?= python3
LESSONS ?=
RECORD ?=
# A folder with a Pyodide, for the exercises on the book's pages; without one they use that of _config.yml.
PYODIDE ?=

BIN := .venv/bin
STAMPS := _build/stamps
STEP := $(BIN)/python .ci/step.py
# For people, who call it in any folder. `make` itself runs `python -m autograder`, in the repository's own folder.
COMMAND := $(BIN)/autograder

# Use this environment's programs and kernels, not others on this machine.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export JUPYTER_PREFER_ENV_PATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
override PYODIDE := $(abspath $(PYODIDE))
export PYODIDE
unexport JUPYTER_PATH PYTHONPATH PYTHONHOME

files = $(shell find $(1) -type f ! -name '*.pyc' ! -name '.*' ! -path '*/.ipynb_checkpoints/*' 2>/dev/null | LC_ALL=C sort)
SOLUTIONS := $(call files,solutions)
# What runs and is released of them: the notebooks, and the files that these find beside themselves.
SOURCES := $(foreach lesson,$(notdir $(wildcard solutions/*)),$(wildcard solutions/$(lesson)/$(lesson).ipynb))
SOURCES += $(foreach file,$(SOLUTIONS),$(if $(findstring /files/,$(file)),$(file)))
NOTEBOOKS := $(patsubst solutions/%,notebooks/%,$(subst /files/,/,$(SOURCES)))
RANKS := $(call files,ranks machines)
AUTOGRADER := $(call files,autograder)
PLANNER := $(call files,planner) benchmarks/published_runs.json benchmarks/measured.py benchmarks/measured/h100.json
BOOK := $(call files,book) _config.yml _toc.yml course.example.toml
CLASS := $(call files,examples)
# A list of files, so that a removed file counts as a change too.
INPUTS := $(SOLUTIONS) $(RANKS) $(AUTOGRADER) $(PLANNER) $(BOOK) $(CLASS)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
# Only the parts of `all` run at once; other steps install packages, or load the machine as much as they can.
ifndef AT_ONCE
.NOTPARALLEL:
endif
.PHONY: all book pdf setup lab notebooks handout run grade report audit try page figure check dist newest lock quick test thorough clean help browser firefox jail npm FORCE

# The chapters have the machine to themselves, since their cells measure times. What follows mostly waits for messages.
# The book asks for the notebooks, which one core makes while the other runs the solutions.
all: $(STAMPS)/chapters $(COMMAND) ## set up, run the solutions, build the book, grade the example class
	@$(MAKE) --no-print-directory -j3 AT_ONCE=yes $(STAMPS)/book $(STAMPS)/executed $(STAMPS)/graded
	@echo
	@echo "The grades of the made-up class in examples/class:"
	@echo
	@cat _build/example-grades.txt
	@echo
	@echo "All its lessons: $(COMMAND) grade --example"
	@echo
	@echo "The book:       $(CURDIR)/_build/html/index.html"
	@echo "The notebooks:  make lab   (opens JupyterLab on notebooks/)"

book: $(STAMPS)/book ## build the book; with PYODIDE=FOLDER, put that Pyodide next to its pages
	@echo "The book: $(CURDIR)/_build/html/index.html"

page: .venv/.ready ## build one chapter's page: LESSON=08_zero1
	@$(BIN)/python .ci/page.py chapter $(LESSON)

figure: $(COMMAND) browser ## build a page with one figure that moves, and run its tests: NAME=race
	@$(BIN)/python .ci/page.py figure $(NAME)

setup: $(COMMAND) ## only install everything into .venv
	@echo "Everything is installed in .venv. make lab opens the notebooks, make book builds the book."

pdf: $(STAMPS)/book browser ## print the book: _build/book.pdf
	@$(STEP) "printing the book" _build/pdf.log -- $(BIN)/python .ci/pdf.py _build/html _build/book.pdf
	@echo "The book: $(CURDIR)/_build/book.pdf"

lab: $(COMMAND) ## open JupyterLab, with nbgrader's extensions, on notebooks/
	@$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

notebooks: $(COMMAND) ## regenerate notebooks/ from solutions/
	@$(BIN)/python -m autograder hidden-tests $(LESSONS)
	@$(BIN)/python -m autograder release $(LESSONS)

handout: $(COMMAND) ## write the folder and the zip for students, by course.toml: _build/handout.zip
	@$(BIN)/python -m autograder handout $(LESSONS)

run: $(COMMAND) ## run the solution notebooks with papermill, test cells included
	@$(BIN)/python -m autograder run $(LESSONS)

grade: $(COMMAND) jail ## grade your class: submitted/ into record.json, feedback/ and grades.csv
	@$(BIN)/python -m autograder grade

report: $(COMMAND) ## one page on your graded class: report.html
	@$(BIN)/python -m autograder report

audit: $(COMMAND) ## grade every known wrong and right answer; with RECORD=1, record what they fail
	@$(BIN)/python -m autograder audit $(LESSONS) $(if $(RECORD),--record)

try: $(COMMAND) ## release, style, audit and jail of one exercise, in seconds: EXERCISE=02-ex7
	@$(BIN)/python -m autograder try $(EXERCISE) $(if $(RECORD),--record)

# Where the variable PYODIDE is set, mypy takes the program to be one for Pyodide, without Linux's calls.
check: $(COMMAND) ## the quick checks: style, types, order of imports, stale notebooks, what was forgotten
	@$(BIN)/ruff check --quiet --extend-exclude examples .
	@$(BIN)/ruff format --quiet --check .
	@mkdir -p _build
	@env -u PYODIDE $(BIN)/mypy >_build/mypy.log 2>&1 & types=$$!; \
	{ $(BIN)/lint-imports --no-logo >_build/imports.log || { cat _build/imports.log; false; }; } && \
	$(BIN)/python -m autograder release --check && \
	$(BIN)/python -m pytest -q tests/test_packages.py tests/test_repository.py tests/lessons/test_style.py tests/lessons/test_lessons.py \
	  tests/attacks/test_attacks.py::test_the_page_of_the_book_says_what_is_known && \
	$(BIN)/python -m autograder drafts; rest=$$?; \
	wait $$types || rest=1; cat _build/mypy.log; exit $$rest

dist: handout book pdf ## build what a release holds: the wheel of ranks and machines, the zip for students, the book in two forms
	@rm -rf _build/dist && mkdir -p _build/dist
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir _build/dist .
	@cp _build/handout.zip _build/book.pdf _build/dist
	@$(BIN)/python -c 'import shutil; shutil.make_archive("_build/dist/book", "zip", "_build/html")'
	@ls -l _build/dist

newest: ## install the newest versions that requirements.txt allows into .venv, instead of those in the lock
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@$(STEP) "installing the newest versions" _build/pip.log -- $(BIN)/python -m pip install --upgrade --upgrade-strategy eager -r requirements.txt -e '.[dev]'
	@touch .venv/.ready

lock: .venv/.ready ## write down the exact versions of everything that is installed
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -v '^nvidia-\|^cuda-\|^triton==' > requirements.lock.new
	@mv requirements.lock.new requirements.lock

# The tests of one file run one after another in one process; those marked `apart` run in any process that is free
# (tests/conftest.py). The attacks load the machine as much as they can, so no other test runs next to them.
# A test needs half a core on average, since many wait for messages: four at once keep two cores busy.
PYTEST := $(BIN)/python -m pytest --durations=25
TOGETHER := -n 4 --dist loadgroup --no-loadscope-reorder --ignore tests/attacks

test: $(COMMAND) browser jail ## run the tests of the code, all solutions, a sample of the known answers
	@$(PYTEST) $(TOGETHER) -m "not thorough"
	@$(PYTEST) tests/attacks -m "not thorough"

quick: $(COMMAND) ## run the tests of the code that take seconds each, without lessons, attacks and the built book
	@$(PYTEST) $(TOGETHER) -m "not slow and not thorough"

thorough: $(COMMAND) browser firefox jail npm ## run the other tests: the built book, all known answers, the whole example class, all attacks
	@$(PYTEST) $(TOGETHER) -m thorough
	@$(PYTEST) tests/attacks -m thorough

clean: ## remove everything that is generated
	@rm -rf _build build .venv .pytest_cache .ruff_cache .jupyter_cache *.egg-info .nbgrader.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@find . -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Installs a Debian package, if that is possible and allowed.
apt = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
  $(STEP) "installing $(1)" _build/apt.log -- \
    sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(1)'; } || true

# The tests that look at the book need Chromium. If it cannot be installed, they are skipped with a message.
browser: .venv/.ready
	@$(BIN)/python -m tests.helpers.browser --find >/dev/null || $(call apt,chromium)

firefox: .venv/.ready
	@command -v firefox-esr >/dev/null || command -v firefox >/dev/null || $(call apt,firefox-esr)

# Submissions are graded in a jail that bubblewrap makes; without it, grading works only with --no-jail.
jail: .venv/.ready
	@command -v bwrap >/dev/null || $(call apt,bubblewrap)

# The test of a class on JupyterHub installs the hub's proxy below _build, with npm.
npm: .venv/.ready
	@command -v npm >/dev/null || $(call apt,npm)

.venv/.ready: requirements.txt requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is not installed; Python 3.11 or newer is needed (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -c 'import platform; print(platform.python_version())'); name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@[ -x $(BIN)/python ] && $(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear .venv
	@$(STEP) "installing into .venv (a few minutes the first time)" _build/pip.log -- $(BIN)/python -m pip install -r requirements.txt -e '.[dev]' -c requirements.lock
	@touch $@

$(COMMAND): .ci/autograder | .venv/.ready
	@install -m 755 $< $@

# The list of all inputs, written only when it differs.
$(STAMPS)/inputs: FORCE
	@mkdir -p $(STAMPS)
	@printf '%s\n' $(INPUTS) | cmp -s - $@ || printf '%s\n' $(INPUTS) > $@

# Which Pyodide the book has, written only when it differs.
$(STAMPS)/pyodide: FORCE
	@mkdir -p $(STAMPS)
	@echo '$(PYODIDE)' | cmp -s - $@ || echo '$(PYODIDE)' > $@

$(STAMPS)/notebooks: $(SOLUTIONS) $(call files,autograder/lesson/templates) autograder/grade/nbgrader/release.py autograder/properties.py autograder/grade/nbgrader/checklist.py autograder/grade/nbgrader/preprocessors.py nbgrader_config.py $(STAMPS)/inputs .venv/.ready $(if $(filter-out $(wildcard $(NOTEBOOKS)),$(NOTEBOOKS)),FORCE)
	@$(BIN)/python -m autograder release
	@touch $@

# Without the test cells, which take half the time; `make run` and `make test` run them.
$(STAMPS)/executed: $(SOLUTIONS) $(RANKS) $(AUTOGRADER) $(STAMPS)/inputs .venv/.ready
	@$(STEP) "running the solutions" _build/solutions.log -- $(BIN)/python -m autograder run --no-tests
	@touch $@

CHAPTERS := $(BOOK) $(RANKS) $(SOURCES) autograder/lesson/notebook.py $(STAMPS)/inputs .venv/.ready
# What cells of some pages try (`keys.of_chapter`).
TRIED := $(SOLUTIONS) $(call files,autograder/checks autograder/answers)

# Two chapters at a time.
$(STAMPS)/chapters: $(CHAPTERS) $(TRIED)
	@$(BIN)/python -m autograder chapters
	@touch $@

# The book is built next to the old one, which is removed once the new one is whole.
$(STAMPS)/book: $(CHAPTERS) $(PLANNER) $(wildcard $(NOTEBOOKS)) $(STAMPS)/notebooks $(STAMPS)/chapters $(STAMPS)/pyodide
	@rm -rf _build/book.new
	@$(STEP) "building the book" _build/book.log -- $(BIN)/jupyter-book build . --all -n -W --keep-going --path-output _build/book.new
	@rm -rf _build/html
	@mv _build/book.new/_build/html _build/html
	@rm -rf _build/book.new
	@touch $@

# The class in two of its eight lessons; grading it in all of them takes as long as all the rest.
SHOWN := 03_step 04_accumulation

# Two submissions a core: a rank that waits for a message leaves its core to others.
$(STAMPS)/graded: $(CLASS) $(SOLUTIONS) $(RANKS) $(AUTOGRADER) nbgrader_config.py $(STAMPS)/inputs .venv/.ready
	@$(MAKE) --no-print-directory jail
	@$(STEP) "grading the example class" _build/example-class.log -- sh -c '$(BIN)/python -m autograder grade --example $(SHOWN) \
	  --jobs $$((2 * $$(getconf _NPROCESSORS_ONLN))) $$(command -v bwrap >/dev/null || echo --no-jail) \
	  > _build/example-grades.txt.new'
	@mv _build/example-grades.txt.new _build/example-grades.txt
	@touch $@
