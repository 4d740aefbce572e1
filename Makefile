# make book       build the site
# make test       check everything
# make notebooks  run the chapters again and save their outputs
# make colab      run the chapters with the versions that Colab has
# make serve      show the site at http://localhost:8000
# make oldest     run the package's tests with the oldest versions it supports
# make clean      remove what the others made, except .venv

PYTHON ?= python3
COLAB_PYTHON ?= $(shell python3.13 -c '' 2>&- && echo python3.13 || echo $(PYTHON))
PORT ?= 8000
VENV := .venv/bin/python

.PHONY: help book test notebooks colab serve oldest clean

help:
	@sed -n 's/^# make/make/p' Makefile

# A page with a warning fails the build. It must fail the next one too, so Sphinx may not keep
# the pages it has read by then.
book: .venv/installed
	@.venv/bin/jupyter-book build -n -W --keep-going . || { rm -rf _build/.doctrees; exit 1; }
	@echo "The book is in _build/html. Open _build/html/index.html, or run 'make serve'."

test: .venv/installed
	@$(VENV) tools/check.py

notebooks: .venv/installed
	@$(VENV) tools/notebooks.py run

# CHAPTERS="04_attention 09_training" runs some of them.
colab: .venv/installed build/colab/installed
	@$(VENV) tools/colab.py $(CHAPTERS)

serve: book
	@echo "http://localhost:$(PORT)  (Ctrl-C stops)"
	@$(VENV) -m http.server --directory _build/html --bind localhost $(PORT)

# The tests of the book and of the site are left out: they need the exact versions of the book.
# Old libraries warn of newer ones beside them, so here a warning is no error.
oldest:
	$(PYTHON) -m venv --clear build/oldest
	$(PYTHON) tools/oldest.py > build/oldest/requirements.txt
	build/oldest/bin/python -m pip install --disable-pip-version-check -e . \
	  -r build/oldest/requirements.txt pytest pytest-xdist hypothesis tokenizers PyYAML 'setuptools>=77'
	build/oldest/bin/python -m pytest -n auto -W default --disable-warnings \
	  minitransformer tests --ignore=tests/book --ignore=tests/site

clean:
	rm -rf _build build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "minitransformer needs Python 3.11 or newer, and '$(PYTHON)' is not that."; \
	  echo "Name one that is: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	# Most modules are never imported here; the others are compiled when they first are.
	$(VENV) -m pip install --disable-pip-version-check --no-compile -r requirements.txt -e .
	$(VENV) -m pip check
	@touch $@

build/colab/installed: tools/colab-requirements.txt
	$(COLAB_PYTHON) -m venv --clear build/colab/environment
	build/colab/environment/bin/python -m pip install --disable-pip-version-check -r $<
	build/colab/environment/bin/python -c 'import matplotlib.font_manager'  # says so the first time
	@touch $@
