# deltabridge. `make` or `make help` lists what can be done. Needed: Go, make, git, and Docker for the image and the
# container tests; everything else is built from Go modules.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

GO        ?= go
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT    ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
IMAGE     ?= deltabridge:dev
CHAOS_FOR ?= 10m
LDFLAGS    = -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# The test stages in the order in which they run: the quick ones fail first.
STAGES := lint test-unit controlplane test-integration

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## "; print "Usage: make <target>\n" } \
	  /^[a-z-]+:.*## / { printf "  %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nVariables:\n'
	@printf '  %-19s %s\n' \
	  IMAGE 'name of the image that `make image` builds ($(IMAGE))' \
	  KUBEBUILDER_ASSETS 'folder with etcd and kube-apiserver, used instead of building them' \
	  DEMO_FOR 'how long `make demo` runs, for example 30s (until Ctrl-C)' \
	  DEMO_KUBECONFIG 'a kubeconfig: `make demo` watches that cluster and creates nothing in it' \
	  CHAOS_FOR 'how long `make chaos` runs ($(CHAOS_FOR))' \
	  CHAOS_SEED 'seed of its first round (one at random, which it prints)' \
	  CHAOS_MIX 'its faults: all, bridge, broker or api (all)' \
	  CHAOS_STEPS 'what the load does in one of its rounds (1200)' \
	  DELTABRIDGE_BINARY 'another bridge, to be tested in place of this one'

.PHONY: build
build: ## Build bin/bridge
	@echo "building bin/bridge $(VERSION)"
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/bridge ./cmd/bridge

.PHONY: test
test: ## Everything: lint, unit, control plane, end-to-end and container tests
	@for stage in $(STAGES); do \
	  printf '\n==> make %s\n' "$$stage"; begin=$$SECONDS; \
	  $(MAKE) "$$stage" || { printf '==> make %s FAILED after %ds\n' "$$stage" $$((SECONDS - begin)); exit 1; }; \
	  printf '==> make %s ok, %ds\n' "$$stage" $$((SECONDS - begin)); \
	done
	@printf '\n==> make test ok\n'

.PHONY: test-unit
test-unit: ## Unit tests with the race detector; generated docs are up to date
	@$(GO) test -race -count=1 -timeout 10m ./...

.PHONY: test-integration
test-integration: controlplane bin/helm ## Alert rules; end-to-end, chart and container tests on real servers
	@cd integration/alerts && $(GO) test -count=1 -timeout 10m ./...
	@cd integration && $(GO) test -count=1 -timeout 40m -p 1 ./...

.PHONY: lint
lint: bin/golangci-lint ## Linters and formatting, root and integration modules
	@echo "golangci-lint: root module"
	@bin/golangci-lint run ./...
	@echo "golangci-lint: integration module"
	@cd integration && ../bin/golangci-lint run --config ../.golangci.yml ./...
	@cd integration/alerts && ../../bin/golangci-lint run --config ../../.golangci.yml ./...

.PHONY: fmt
fmt: bin/golangci-lint ## Format the code as the linter wants it
	@bin/golangci-lint fmt ./...
	@cd integration && ../bin/golangci-lint fmt --config ../.golangci.yml ./...
	@cd integration/alerts && ../../bin/golangci-lint fmt --config ../../.golangci.yml ./...

.PHONY: generate
generate: ## Write docs/config.md, docs/metrics.md and the chart's README anew from the code
	@$(GO) test -count=1 ./internal/config -run TestDocs -update
	@$(GO) test -count=1 ./internal/server -run TestDocs -update
	@cd integration && $(GO) test -count=1 ./chart -run TestReadme -update

.PHONY: controlplane
controlplane: ## Build etcd and kube-apiserver into bin/controlplane, once
	@integration/controlplane/build.sh

# exec leaves Ctrl-C to the demo itself, which stops what it started.
.PHONY: demo
demo: controlplane build ## Watch a live cluster's changes arrive in NATS
	@echo "building bin/demo"
	@cd integration && $(GO) build -o ../bin/demo ./cmd/demo
	@exec bin/demo -bridge bin/bridge

.PHONY: chaos
chaos: controlplane ## Put the bridge through faults at random; a table in bin/chaos
	@cd integration && CHAOS_FOR='$(CHAOS_FOR)' $(GO) test -count=1 -timeout 0 -v -run '^TestChaos$$' ./chaos

.PHONY: bench
bench: controlplane build ## Measure decoder, publisher and bridge against the plain ways
	@cd integration && $(GO) run ./bench

.PHONY: image
image: bin/image/ca-certificates.crt ## Build the container image, deltabridge:dev unless IMAGE says otherwise
	@echo "building bin/image/bridge (static)"
	@CGO_ENABLED=0 GOOS=linux $(GO) build -trimpath -ldflags '-s -w $(LDFLAGS)' -o bin/image/bridge ./cmd/bridge
	@docker build --quiet --build-arg VERSION='$(VERSION)' --build-arg COMMIT='$(COMMIT)' -t '$(IMAGE)' . >/dev/null
	@echo "built image $(IMAGE)"

.PHONY: clean
clean: ## Remove everything that was built
	@rm -rf bin

# Tools are pinned in tools/go.mod and built when it changes.
bin/golangci-lint: tools/go.mod tools/go.sum
	@echo "building bin/golangci-lint (once; about two minutes with a cold cache)"
	@cd tools && $(GO) build -trimpath -ldflags '-s -w' -o ../bin/golangci-lint \
	  github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

bin/helm: tools/helm/go.mod tools/helm/go.sum
	@echo "building bin/helm (once; about six minutes with a cold cache)"
	@cd tools/helm && $(GO) build -trimpath -ldflags '-s -w' -o ../../bin/helm helm.sh/helm/v4/cmd/helm
	@touch $@

bin/image/ca-certificates.crt: tools/go.mod tools/go.sum tools/cabundle/main.go
	@mkdir -p $(@D)
	@cd tools && $(GO) run ./cabundle >../$@
