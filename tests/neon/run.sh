#!/bin/sh
# run.sh SOURCE_DIR BUILD_DIR - the kernels' tests for AArch64, cross-compiled and run by qemu.
# Skipped (77) where there is no cross compiler or emulator
# (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user).
set -eu
src=$1 out=$2/neon
cc=aarch64-linux-gnu-gcc
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if ! command -v $cc >/dev/null || [ -z "$qemu" ]; then
    echo "skipped: needs $cc and qemu-aarch64"
    exit 77
fi
mkdir -p "$out"
flags="-std=gnu17 -D_GNU_SOURCE -O2 -ffp-contract=off -I$src/tests/neon -I$src/src -DKERN_SMALL=0"
flags="$flags -Wall -Wextra -Werror -DHOUSE_SHARED_DIR=\"absent\""
sources="clock dtype err file mem pool rng hist str"
objects=
compile() { # SOURCE [FLAGS]
    o=$out/$(basename "${1%.c}").o
    source=$1
    shift
    $cc $flags "$@" -c "$source" -o "$o"
    objects="$objects $o"
}
for s in $sources; do compile "$src/src/base/$s.c"; done
for s in pack quant pick kern_ref; do compile "$src/src/kern/$s.c"; done
compile "$src/src/kern/kern_neon.c" -O3 -march=armv8.2-a+dotprod
for s in kv rec shape; do compile "$src/src/state/$s.c"; done
for s in "$src"/src/nn/*.c; do
    case $s in
    *_test.c | *_bench.c) ;;
    *) compile "$s" ;;
    esac
done
for t in matmul_test matmul_bits_test attn_bits_test attn_error_test; do
    $cc $flags -static "$src/src/nn/$t.c" $objects -o "$out/$t" -lm -lpthread
    "$qemu" -cpu max "$out/$t"
done
