#!/bin/sh
# peers.sh HOLDFAST - what `make peers` runs: installs the npm peer where it is missing, then measures (README.md).
set -eu
here=$(dirname "$0")
fail() {
    echo "peers: $1" >&2
    exit 1
}

[ -n "${MODEL:-}" ] ||
    fail 'which model? make peers MODEL=path.gguf [THREADS=2] [REPEAT=5] [P=512,2048] [N=64] [LLAMA_BENCH="/path/to/llama-bench ..."]'
[ "$(node -p 'Number(process.versions.node.split(".")[0]) >= 20' 2>/dev/null)" = true ] || fail "node 20 or newer is missing"

addon="$here/node_modules/@node-llama-cpp/linux-$(node -p process.arch)/package.json"
if [ ! -f "$addon" ]; then
    # npm says nothing when an optional package, as one of another architecture is, cannot be had
    npm --prefix "$here" ci --ignore-scripts --no-audit --no-fund >/dev/null 2>&1 || true
    if [ ! -f "$addon" ]; then
        why="npm cannot install llama.cpp (npm or the network is missing, or a build for $(uname -m))"
        [ -n "${LLAMA_BENCH:-}" ] || fail "$why; LLAMA_BENCH=/path/to/llama-bench would be a peer too"
        echo "peers: $why; only LLAMA_BENCH is a peer" >&2
        export PEERS_NPM=no
    fi
fi
exec node "$here/peers.mjs" "$1"
