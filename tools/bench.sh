#!/bin/sh
# bench.sh BUILD_DIR [NAME...] - run the benches of a build, all or those whose name has a NAME in it.
set -eu
build=$1
shift
ran=0
for b in $(find "$build" -maxdepth 1 -name '*_bench' -type f -perm -u+x | sort); do
    wanted=$([ $# -eq 0 ] && echo yes || echo no)
    for name in "$@"; do
        case $(basename "$b") in *"$name"*) wanted=yes ;; esac
    done
    [ "$wanted" = yes ] || continue
    ran=$((ran + 1))
    echo "== $(basename "$b")"
    "$b"
done
[ $ran -gt 0 ] || {
    echo "bench.sh: no bench in $build has such a name" >&2
    exit 1
}
