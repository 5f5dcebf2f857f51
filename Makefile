# Two commands: `make run` writes text with the embedded model, `make test` runs every test.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt README.md $(shell find src native -type f -not -name '*.so' -not -path '*/__pycache__/*')
PROMPT ?= And the king said
RUN    := run --prompt "$(PROMPT)" --max-tokens 64 --temperature 0.6 --top-p 0.9 --seed 2

.PHONY: run test kernels emulated lint lib dist clean

run: $(VENV)/installed
	$(BIN)/colibri $(RUN)

test: $(VENV)/installed-test kernels
	$(BIN)/python -m pytest -q tests

kernels: $(VENV)/installed-test
	PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B build/kernels -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTS=ON -DBUILD_MODULE=OFF > build/kernels.log 2>&1 || { cat build/kernels.log; exit 1; }
	PATH="$(abspath $(BIN)):$$PATH" cmake --build build/kernels
	PATH="$(abspath $(BIN)):$$PATH" ctest --test-dir build/kernels --output-on-failure

# Processors that are not there, emulated: tools/emulated.py says which and what has to be the same. Needs
# gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
emulated: kernels
	PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B build/arm -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTS=ON -DBUILD_MODULE=OFF -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_EXE_LINKER_FLAGS=-static > build/arm.log 2>&1 || { cat build/arm.log; exit 1; }
	PATH="$(abspath $(BIN)):$$PATH" cmake --build build/arm
	$(BIN)/python tools/emulated.py $(RUN)

# libcolibri.so and colibri.h for programs in C, in build/lib: docs/embedding.md
lib: $(VENV)/installed-lib
	$(BIN)/python tools/build_library.py build/lib

# What would be published, in dist/, installed and run under each of these Pythons that is here: docs/release.md
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
dist: $(VENV)/installed
	$(BIN)/python tools/distribute.py $(PYTHONS) -- $(RUN)

lint: $(VENV)/installed-test
	$(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Colibri needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python $(SOURCES)
	$(BIN)/pip install --quiet --disable-pip-version-check .
	@touch $@

$(VENV)/installed-test: $(VENV)/bin/python $(SOURCES)
	mkdir -p build
	$(BIN)/pip install --quiet --disable-pip-version-check '.[test]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-lib: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check 'cffi>=1.16'
	@touch $@

clean:
	rm -rf build $(VENV)
