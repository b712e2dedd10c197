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
find src tests -name '*.[ch]' ! -name '*_table.c' | sort | xargs clang-format --dry-run -Werror
echo "lint: format ok"
find src tests -name '*.c' ! -name '*_table.c' | sort |
    xargs -P "$(nproc)" -n 4 clang-tidy -p "$build" --quiet --warnings-as-errors='*' 2>/dev/null
echo "lint: clang-tidy ok"
