# A fresh machine needs make and Python 3.11 to 3.13, nothing else. `make` alone prints the targets.
#
# Everything installed comes from hashed lock files, so an environment is built again only when its lock has changed.
# PYTHON=python3.12 chooses the interpreter of environments that are not built yet.

WORKDIR ?= runs/quickstart
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Each candidate is run, because a shim of a version manager may be there and still fail.
FITS = import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
FIND_PYTHON = for p in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	"$$p" -c '$(FITS)' >/dev/null 2>&1 && { command -v "$$p"; exit; }; done; \
	echo "error: no Python 3.11, 3.12 or 3.13 with venv runs as $(or $(PYTHON),python3); install one (on Debian: python3 python3-venv), or give PYTHON=/path/to/python3.12" >&2; exit 2

# $(call new_env,FOLDER): an empty environment with the build backend and its plug-in, for the few packages that come as
# source.
define new_env
	@python=$$($(FIND_PYTHON)) && echo "$(1): $$("$$python" --version)" && rm -rf $(1) && "$$python" -m venv $(1)
	@$(call install,$(1),requirements/build.txt)
endef
# $(call install,FOLDER,LOCK): exactly what the lock names; the resolver has nothing left to decide.
install = $(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --require-hashes -r $(2)
# As a line in a .pth file: a script beside the checkout, whose folder is called bert_jax too, finds the package all the same.
install_package = $(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	--config-settings editable_mode=compat --editable .

env: .venv/base.stamp  ## build .venv with what training needs
.venv/base.stamp: requirements.txt requirements/build.txt
	$(call new_env,.venv)
	@$(call install,.venv,requirements.txt)
	@$(call install_package,.venv)
	@touch $@

.venv/test.stamp: .venv/base.stamp requirements/test.txt
	@$(call install,.venv,requirements/test.txt)
	@touch $@

# JAX for NVIDIA GPUs, 6 GB with CUDA's libraries; of the machine only the driver is needed.
.venv-gpu/base.stamp: requirements/gpu.txt requirements/build.txt
	$(call new_env,.venv-gpu)
	@$(call install,.venv-gpu,requirements/gpu.txt)
	@$(call install_package,.venv-gpu)
	@touch $@

.venv-bench/base.stamp: requirements/bench.txt requirements/build.txt
	$(call new_env,.venv-bench)
	@$(call install,.venv-bench,requirements/bench.txt)
	@$(call install_package,.venv-bench)
	@touch $@

# The lock has all but torch and the CUDA packages of its default Linux build, which are several GB that no comparison
# needs. torch comes last, in the build that pip is set up to find (CPU or CUDA), with what that build asks for.
.venv-parity/base.stamp: requirements/parity.txt requirements/build.txt
	$(call new_env,.venv-parity)
	@$(call install,.venv-parity,requirements/parity.txt)
	@.venv-parity/bin/python -m pip install --quiet --disable-pip-version-check $$(sed -n 's/^ *\(torch==.*\)/\1/p' setup.cfg)
	@$(call install_package,.venv-parity)
	@touch $@

# The last transformers before version 5 reads exports too. It needs an older tokenizers than everything else here.
.venv-parity4/base.stamp: requirements/parity4.txt requirements/build.txt
	$(call new_env,.venv-parity4)
	@$(call install,.venv-parity4,requirements/parity4.txt)
	@touch $@

pretrain: env  ## pretrain the small BERT on the docstrings of installed packages; WORKDIR=runs/quickstart
	.venv/bin/bert-jax pretrain --config=configs/pretrain/quickstart.py --workdir=$(WORKDIR)

# Where JAX finds no GPU this ends with a line that says why, rather than train on the CPU for days.
pretrain-gpu: WORKDIR = runs/gpu
pretrain-gpu: .venv-gpu/base.stamp  ## pretrain a small ModernBERT on one NVIDIA GPU, on the same text; in .venv-gpu
	JAX_PLATFORMS=cuda,cpu .venv-gpu/bin/bert-jax pretrain --config=configs/pretrain/modernbert_gpu.py --workdir=$(WORKDIR)

# Toys compile longer than they run, so XLA does not optimize them, and generates code the older, quicker way where jaxlib
# has it (0.12 does not know the flag, and ends). All other targets compile as users do.
OLDER_WAY = .venv/bin/python -c "from importlib.metadata import version; \
	print('--xla_cpu_use_fusion_emitters=false' * version('jaxlib').startswith('0.10.'))"
QUICKLY = XLA_FLAGS="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \
	--xla_cpu_parallel_codegen_split_count=1 $(shell $(OLDER_WAY))"

# Two processes share the machine and what they have compiled; a file's tests stay together.
test: lint  ## lint, types and tests; ARGS=--costs=costs.md
	$(QUICKLY) .venv/bin/python -m pytest -n 2 --dist loadfile $(ARGS)

floor: .venv/test.stamp  ## write tests/fixtures/floor.json anew, where a change is meant to move rows or losses
	$(QUICKLY) .venv/bin/python -m tests.floor

keys: .venv/test.stamp  ## write the tables of configs/README.md anew, where keys have changed
	.venv/bin/python -m tests.docs.key_tables

lint: .venv/test.stamp  ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: .venv/test.stamp  ## let ruff rewrite the files
	.venv/bin/ruff check --fix-only --quiet .
	.venv/bin/ruff format .

test-heavy: .venv/test.stamp  ## tests that take minutes
	.venv/bin/python -m pytest -m heavy

# Each part takes at most 40 minutes and runs alone too; tests/trust/damage.py has the seed and the counts.
test-trust: .venv/test.stamp  ## attacks on a running system; PART=kills, BERT_JAX_TRUST_COUNT=0.1, BERT_JAX_TRUST_SEED=1
	$(QUICKLY) .venv/bin/python -m pytest -s -m trust tests/trust$(if $(PART),/test_$(PART).py)

test-parity: .venv-parity/base.stamp .venv-parity4/base.stamp  ## compare with PyTorch and transformers 5, exports with 4 too
	.venv-parity/bin/python -m pytest -m parity tests/parity

bench: .venv-parity/base.stamp  ## measure train steps on this CPU, beside PyTorch and Hugging Face, in .venv-parity
	.venv-parity/bin/python -m tests.benchmarks.suite --device=cpu $(ARGS)

# An image with JAX and PyTorch is enough: nothing is installed. PYTHON=... chooses its interpreter.
bench-gpu bench-tpu:  ## the same on one GPU or one TPU host, within 8 minutes, with the Python that is there
	$(or $(PYTHON),python3) -m tests.benchmarks.suite --device=$(@:bench-%=%) --minutes=8 $(ARGS)

bench-parts: .venv-bench/base.stamp  ## measure single parts: rows, tokenizers, builds, saves; in .venv-bench
	.venv-bench/bin/python -m pytest -s $(wildcard tests/benchmarks/bench_*.py)

dist: env  ## build the wheel and the sdist of a release in dist/; the wheel is made from the sdist
	rm -rf dist *.egg-info
	.venv/bin/python -c "from setuptools import build_meta; build_meta.build_sdist('dist')" >/dev/null
	.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
	@ls dist

test-dist: dist  ## install that wheel in an empty environment, and use it far from this folder
	$(call new_env,.venv-dist)
	@$(call install,.venv-dist,requirements.txt)
	@.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dist/*.whl
	.ci/installed .venv-dist/bin "$$(.venv-dist/bin/python -c 'import bert_jax; print(bert_jax.__version__)')"

# Everything is resolved once, all extras together (Beam holds back protobuf, numpy and pyarrow), and each lock is cut
# from that, so the locks agree and go into one environment; parity4 has older releases of three. Universal: each holds for every platform and Python.
COMPILE = .venv-lock/bin/uv pip compile --quiet setup.cfg --universal --python-version 3.11 --no-annotate --custom-compile-command 'make lock'
CUT = $(COMPILE) --constraint .venv-lock/everything.txt --generate-hashes
lock:  ## resolve the newest dependencies into requirements.txt and requirements/*.txt
	@python=$$($(FIND_PYTHON)) && "$$python" -m venv --clear .venv-lock && .venv-lock/bin/python -m pip install --quiet uv
	$(COMPILE) --all-extras --output-file .venv-lock/everything.txt
	$(CUT) --output-file requirements.txt
	for extra in test tpu gpu plan-gpu gcs segment bench; do $(CUT) --extra $$extra --output-file requirements/$$extra.txt || exit; done
	$(CUT) --extra parity --output-file requirements/parity.txt \
	  $$(sed -nE 's/^((torch|triton|cuda-|nvidia-)[a-z0-9-]*)==.*/--no-emit-package \1/p' .venv-lock/everything.txt | sort -u)
	grep -vE '^(transformers|tokenizers|huggingface-hub)==' .venv-lock/everything.txt > .venv-lock/others.txt
	echo 'transformers<5' | $(subst everything,others,$(subst setup.cfg,-,$(CUT))) --output-file requirements/parity4.txt
	printf 'setuptools\nsetuptools-scm\n' | $(subst setup.cfg,-,$(CUT)) --output-file requirements/build.txt
	rm -rf .venv-lock

clean:  ## remove environments, builds and caches; runs/ stays
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

help:  ## print this
	@sed -nE 's/^([a-z -]+):[^#]*## (.*)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null || grep -E '^[a-z -]+:.*##' Makefile

.PHONY: env pretrain pretrain-gpu test floor keys lint format test-heavy test-trust test-parity bench bench-gpu bench-tpu bench-parts dist test-dist lock clean help
