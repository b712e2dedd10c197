#!/bin/sh
# floors.sh SOURCE_DIR - hold every #include "room/..." to the room() lines of CMakeLists.txt.
# A test may also include its own room's foo_int.h; nobody includes another room's, nor a .c.
set -eu
cd "$1"
awk '
FILENAME == "CMakeLists.txt" {
    if (match($0, /^room\(/)) {
        gsub(/room\(|\)|DEPS/, "")
        may[$1, $1] = 1; room[$1] = 1; may[$1, "base"] = 1
        for (i = 2; i <= NF; i++) may[$1, $i] = 1
    }
    next
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split(FILENAME, f, "/"); own = f[2]
    inc = $0; sub(/^[^"]*"/, "", inc); sub(/".*/, "", inc)
    n = split(inc, p, "/"); to = p[1]
    where = FILENAME ":" FNR ": \"" inc "\""
    if (inc ~ /\.c$/) { print where ": a .c is never included"; bad = 1 }
    if (n < 2) { if (inc !~ /^gen_/) { print where ": write includes from src/"; bad = 1 } next }
    if (!(to in room)) { print where ": no such room"; bad = 1 }
    else if (!((own, to) in may)) { print where ": " own " may not use " to; bad = 1 }
    if (inc ~ /_int\.h$/ && own != to) { print where ": private to " to; bad = 1 }
}
END { exit bad }
' CMakeLists.txt $(find src -name '*.[ch]' -o -name '*.inc' | sort)
echo "floors: ok"
