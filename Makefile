# The targets that people use; `make help` lists them. Go is all that is needed
# to begin with: what else a target needs it installs below .cache, or names.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory
.DEFAULT_GOAL := help

CACHE        := $(CURDIR)/.cache
LINT_VERSION := v2.15.0
LINT         := $(CACHE)/bin/golangci-lint-$(LINT_VERSION)
# The same flags as xcaddy's, so that `build` and `dist` share the build cache.
BUILD_FLAGS  := -trimpath -tags nobadger,nomysql,nopgx -ldflags '-w -s'
FUZZTIME     ?= 30s
MINUTES      ?= 2
# Of the soak; none takes one by chance.
SEED         ?= 0
LISTEN       ?= 127.0.0.1:8080

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: run
run: build ## the gateway on :8080 before three simulated replicas (ENGINE=llamacpp: a real small model)
ifeq ($(ENGINE),llamacpp)
	LISTEN=$(LISTEN) exec engines/run-llamacpp.sh
else ifeq ($(ENGINE),)
	exec bin/llmgw demo --from $(LISTEN)
else
	@echo "ENGINE=$(ENGINE) is not known: leave it out for simulated replicas, or use ENGINE=llamacpp" >&2; exit 2
endif

.PHONY: test
test: check-cc ## all tests with the race detector, modules/integration included
	go test -race -timeout 20m ./...

.PHONY: check-cc
check-cc:
	@command -v $${CC:-gcc} >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq gcc libc6-dev; \
	  else echo "the race detector needs a C compiler: install gcc" >&2; exit 1; fi; }

.PHONY: lint
lint: $(LINT) ## golangci-lint, formatting, tidy modules
	go vet ./...
	$(LINT) run --build-tags engines ./...
	@go mod tidy -diff || { echo "go.mod or go.sum is not tidy: run go mod tidy" >&2; exit 1; }

$(LINT):
	@mkdir -p $(CACHE)/bin
	GOBIN=$(CACHE)/bin GOFLAGS= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv $(CACHE)/bin/golangci-lint $@

.PHONY: build
build: ## bin/llmgw, from this tree
	CGO_ENABLED=0 go build $(BUILD_FLAGS) -o bin/llmgw ./cmd/llmgw

.PHONY: dist
dist: ## dist/llmgw, built through xcaddy as xcaddy.json has it
	go run ./cmd/llmgw-build -config xcaddy.json -output dist/llmgw
	dist/llmgw list-modules | grep -E '(^|\.)llm'
	dist/llmgw validate --config Caddyfile.example

.PHONY: bench
bench: build ## the numbers that are promised, as ratios measured in one run
	go test -run '^$$' -bench . -benchmem ./modules/schedule ./modules/internal/...
	go run ./bench

.PHONY: bench-routing
bench-routing: build ## hit ratio and time to first token of routing policies, beside the bound (an hour)
	go run ./bench -routing

.PHONY: soak
soak: build ## load and failing engines for MINUTES (2), then what must hold; SEED repeats a run
	go run ./soak -minutes $(MINUTES) -seed $(SEED)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (30s)
	@for pkg in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; \
	done

.PHONY: e2e-engines
e2e-engines: build ## tests against real vLLM and llama.cpp on the CPU: needs 3 GB of disk and some minutes
	engines/llamacpp.sh install
	engines/vllm.sh install
	engines/sdk.sh install
	go test -tags engines -count=1 -timeout 30m ./engines/e2e

.PHONY: clean
clean: ## remove what was built; .cache stays
	rm -rf bin dist llmgw
