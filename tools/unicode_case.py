#!/usr/bin/env python3
"""Writes src/text/unicode_case.c: upper and lower case, and what Python's repr() escapes.

    tools/unicode_case.py > src/text/unicode_case.c

From Python's own tables (unicodedata), since Python is what templates were written against.
"""
import unicodedata


def runs(fn):
    """Single-character mappings as runs (first, last, step, delta)."""
    pairs = [(c, ord(fn(chr(c))) - c) for c in range(0x110000)
             if not 0xD800 <= c <= 0xDFFF and len(fn(chr(c))) == 1 and fn(chr(c)) != chr(c)]
    out = []
    for c, d in pairs:
        if out and out[-1][3] == d:
            first, last, step, _ = out[-1]
            if c - last == step or (first == last and c - last in (1, 2)):
                out[-1] = (first, c, c - last, d)
                continue
        out.append((c, c, 1, d))
    return out


def special(fn):
    return [(c, fn(chr(c))) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and len(fn(chr(c))) > 1]


def hidden():
    out = []
    for c in range(0x110000):
        if chr(c).isprintable():
            continue
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def rows(items, per):
    return "".join("    " + " ".join(items[i:i + per]) + "\n" for i in range(0, len(items), per))


def table(kind, name, items, per):
    print("const struct %s %s[] = {\n%s};\nconst size_t n_%s = sizeof %s / sizeof %s[0];\n"
          % (kind, name, rows(items, per), name, name, name))


print("/* unicode_case.c - Unicode %s, written by tools/unicode_case.py; do not edit. */"
      % unicodedata.unidata_version)
print('#include "text/unicode_int.h"\n\n/* clang-format off */')
for name, fn in (("unicode_upper", str.upper), ("unicode_lower", str.lower)):
    table("unicode_run", name, ["{0x%x,0x%x,%d,%d}," % r for r in runs(fn)], 5)
    many = ["{0x%x,{%s}}," % (c, ",".join("0x%x" % ord(x) for x in s)) for c, s in special(fn)]
    table("unicode_many", name + "_many", many, 4)
table("unicode_range", "unicode_hidden", ["{0x%x,0x%x}," % tuple(r) for r in hidden()], 6)
