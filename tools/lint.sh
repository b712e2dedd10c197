#!/bin/sh
# lint.sh BUILD_DIR - format and static analysis of every source; exits 1 on the first kind that finds
# something.  BUILD_DIR has compile_commands.json.  Needs clang-format and clang-tidy.
set -eu
build=$1
cd "$(dirname "$0")/.."
for tool in clang-format clang-tidy; do
    command -v $tool >/dev/null || {
        echo "lint: $tool is missing (apt-get install $tool)" >&2
        exit 1
    }
done

# generated tables keep the form their generator gives them
sources() {
    find src tests \( -name '*_table.c' -o -name node_modules -prune \) -o -name "$1" -print | sort
}
# what this machine does not compile (kernels of other CPUs) cannot be looked into; one file a process: several
# confuse the check of va_lists
tidy() {
    while read -r f; do
        ! grep -qF "$PWD/$f\"" "$build/compile_commands.json" || echo "$f"
    done | xargs -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet --warnings-as-errors='*' "$@" 2>/dev/null
}
program='_\(test\|fuzz\|bench\)\.c$'

sources '*.[ch]' | xargs clang-format --dry-run -Werror
echo "lint: format ok"
sources '*.c' | grep -v "$program" | tidy
# cmocka's assertions look to the analyzer as if they returned, tests multiply small numbers, and their macros declare
sources '*.c' | grep "$program" |
    tidy --checks='-clang-analyzer-*,-bugprone-implicit-widening-of-multiplication-result,-bugprone-macro-parentheses'
echo "lint: clang-tidy ok"
