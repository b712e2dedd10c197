# The two commands a newcomer needs are `make demo` and `make test`; the rest is for developers.
PRESET ?= release
BUILD = build/$(PRESET)

.PHONY: all deps configure build demo test bench peers lint clean

all: build

deps:
	@tools/deps.sh

configure: deps
	@cmake --preset $(PRESET) $(CONFIGURE) >build-$(PRESET).log 2>&1 || { cat build-$(PRESET).log; rm -f build-$(PRESET).log; exit 1; }
	@rm -f build-$(PRESET).log

build: configure
	@cmake --build $(BUILD)

demo: configure
	@cmake --build $(BUILD) --target holdfast
	@$(BUILD)/holdfast demo

test: build
	@ctest --test-dir $(BUILD) --output-on-failure -LE slow -j 2

bench: build
	@tools/bench.sh $(BUILD)

# holdfast and llama.cpp in turn on one model: make peers MODEL=path.gguf (bench/peers/README.md)
peers: configure
	@cmake --build $(BUILD) --target holdfast
	@bench/peers/peers.sh $(BUILD)/holdfast

lint: build
	@tools/lint.sh $(BUILD)

clean:
	rm -rf build
