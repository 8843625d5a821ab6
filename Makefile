# Weir. 'make up' installs what is missing and runs the system; 'make test'
# installs what its tests need and passes all of them.

GO ?= go
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
TESTFLAGS ?= -timeout 10m

# The moe runner's vector kernels need this experiment. A Go that does not know
# it builds plain kernels, which compute the same, slower.
export GOEXPERIMENT ?= $(shell GOEXPERIMENT=simd $(GO) version >/dev/null 2>&1 && echo simd)

# go-nvml declares what NVIDIA's header calls deprecated.
export CGO_CFLAGS := $(or $(CGO_CFLAGS),-O2 -g) -Wno-deprecated-declarations

# Packages that compute, or drive other processes, gain nothing from the race
# detector and are many times slower under it.
NORACE = weir/(cascade/replay|engine/llama|engine/moe/evaluate|experts/plan|experts/format|internal/e2e)(/|$$)|weir/experts$$

.PHONY: up test soak lint bench build engine setup setup-test fmt

# make up ARGS="--listen-base 8420 --data DIR": other ports, another data folder.
up: setup build engine
	bin/weir up $(ARGS)

build:
	$(GO) build -trimpath -o bin/weir .

# engine fetches llama.cpp's libraries by the lockfile in engine/install.
engine: build
	bin/weir engine install --lib lib

setup:
	sh deploy/setup/install.sh run

setup-test:
	sh deploy/setup/install.sh test

lint:
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo 'run make fmt'; exit 1; }
	$(GO) vet ./...
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 GOEXPERIMENT= $(GO) vet ./... # compiles tests too
	$(GO) run $(STATICCHECK) ./...

test: setup-test build engine lint
	cd internal/e2e/openaijs && npm ci --no-fund --no-audit
	WEIR_LIB="$(CURDIR)/lib" WEIR_BIN="$(CURDIR)/bin/weir" $(GO) test -race $(TESTFLAGS) $$($(GO) list ./... | grep -vE '$(NORACE)')
	WEIR_LIB="$(CURDIR)/lib" WEIR_BIN="$(CURDIR)/bin/weir" $(GO) test $(TESTFLAGS) $$($(GO) list ./... | grep -E '$(NORACE)')

# soak runs the same tests with the full counts and durations.
soak: SHELL = bash
soak: setup-test build engine
	cd internal/e2e/openaijs && npm ci --no-fund --no-audit
	set -o pipefail; WEIR_SOAK=1 WEIR_LIB="$(CURDIR)/lib" WEIR_BIN="$(CURDIR)/bin/weir" $(GO) test -count=1 -p 1 -timeout 4h -v ./... | { grep --line-buffered -vE '^=== (RUN|PAUSE|CONT)' || true; }

bench: setup build engine
	WEIR_LIB="$(CURDIR)/lib" bin/weir bench --json-out out/bench.json $(if $(wildcard ../shared/data),--data ../shared/data)

fmt:
	gofmt -w .
