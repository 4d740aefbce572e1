# make book        build the site
# make quick       check style and types, run the tests of what does not train
# make test        run one case of each kind, every chapter, every page
# make everything  run all cases, the deeper pages too, once more without vector units
# make everywhere  run tests and chapters under what differs between machines
# make notebooks   run the chapters again and save their outputs
# make colab       run the chapters with the versions that Colab has
# make epub pdf    write the whole book as one file, build/minitransformer.epub and .pdf
# make sheet       print the cheat sheet on one page, build/cheat_sheet.pdf
# make serve       show the site at http://localhost:8000
# make clean       remove what the others made, except .venv

PYTHON ?= python3
COLAB_PYTHON ?= $(shell python3.13 -c '' 2>&- && echo python3.13 || echo $(PYTHON))
PORT ?= 8000
VENV := .venv/bin/python

.PHONY: help install book epub pdf sheet quick test everything notebooks everywhere colab serve clean

help:
	@sed -n 's/^# make/make/p' Makefile

install book quick test everything:
	@$(PYTHON) tools $@

notebooks: install
	@$(VENV) tools/notebooks.py run

# PLACES="scalar abroad" runs some of them.
everywhere: install
	@$(VENV) tools/everywhere.py $(PLACES)

# CHAPTERS="04_attention 09_training" runs some of them.
colab: install build/colab/installed
	@$(VENV) tools/colab.py $(CHAPTERS)

epub pdf sheet: book
	@$(VENV) tools/printed.py $@

serve: book
	@echo "http://localhost:$(PORT)  (Ctrl-C stops)"
	@$(VENV) -m http.server --directory _build/html --bind localhost $(PORT)

clean:
	rm -rf _build build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

build/colab/installed: tools/colab-requirements.txt
	$(COLAB_PYTHON) -m venv --clear build/colab/environment
	build/colab/environment/bin/python -m pip install --disable-pip-version-check -r $<
	build/colab/environment/bin/python -c 'import matplotlib.font_manager'  # says so the first time
	@touch $@
