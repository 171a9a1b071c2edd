# The commands of the README. `make help` lists them; the work is in tools/ and in CMakePresets.json.

BENCHES := restart store state attend decode speculate kernel codec
JOBS ?= $(shell nproc)
CMAKE_ARGS ?=
launcher := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
quiet := $(if $(JSON),1>&2)# with JSON=1 only JSON appears on stdout
build = cmake --preset release --log-level=WARNING $(launcher) $(CMAKE_ARGS) $(quiet) && cmake --build build -j $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help demo test build bench $(BENCHES:%=bench-%) format clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@printf '  make bench-%-8s %s\n' $(foreach b,$(BENCHES),$(b) "One of them: $(b)")

demo: build ## A real model reads a long text, exits, and remembers it in a new process
	@tools/demo.sh

build: ## The program, at build/cairn
	@tools/setup.sh demo $(quiet)
	@$(build) --target cairn_cli $(quiet)

test: ## All tests but those labelled slow
	@tools/setup.sh test
	@$(build)
	@ctest --test-dir build --label-exclude '(^|_)slow$$' --parallel $(JOBS) --output-on-failure --no-tests=error

bench: ## All benchmarks as tables; JSON=1 prints one JSON array
	@tools/setup.sh demo $(quiet)
	@$(build) --target cairn_cli $(BENCHES:%=%_bench) $(quiet)
	@tools/bench.sh $(if $(JSON),--json) $(BENCHES) mlx

$(BENCHES:%=bench-%): bench-%:
	@tools/setup.sh demo $(quiet)
	@$(build) --target $*_bench $(quiet)
	@tools/bench.sh $(if $(JSON),--json) $*

format: ## Lays out every C++ file with clang-format 14
	@git ls-files -z -- '*.h' '*.cc' | xargs -0 clang-format-14 -i

clean: ## Removes what was built; .venv and models/ stay
	@rm -rf build build-dev build-asan build-tsan build-fuzz
