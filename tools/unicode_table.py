#!/usr/bin/env python3
"""Writes src/text/unicode_table.c from tools/unicode_classes.tsv.

    tools/unicode_table.py tools/unicode_classes.tsv > src/text/unicode_table.c

The classes of all code points as a table in two stages: unicode_page[cp >> 8] names a page,
unicode_class[page * 256 + (cp & 255)] is the class.  Equal pages are stored once.
"""
import sys

CODE = {"L": 1, "M": 2, "N": 3, "S": 4}  # enum unicode_class; 0 is anything else


def main():
    cls = bytearray(0x110000)
    version = ""
    for line in open(sys.argv[1], encoding="ascii"):
        if line.startswith("#"):
            version = version or line[1:].split(" code point")[0].strip()
            continue
        c, lo, hi = line.split()
        for cp in range(int(lo, 16), int(hi, 16) + 1):
            cls[cp] = CODE[c]
    pages, page_of = {}, []
    for at in range(0, len(cls), 256):
        page_of.append(pages.setdefault(bytes(cls[at:at + 256]), len(pages)))
    assert len(pages) <= 256

    def rows(v):
        return "".join("    " + ",".join("%d" % x for x in v[i:i + 32]) + ",\n"
                       for i in range(0, len(v), 32))

    print("/* unicode_table.c - %s, written by tools/unicode_table.py; do not edit. */" % version)
    print('#include "text/unicode_int.h"\n')
    print("/* clang-format off */")
    print("const uint8_t unicode_page[0x1100] = {\n" + rows(page_of) + "};\n")
    print("const uint8_t unicode_classes[] = {")
    for page in pages:
        print(rows(page), end="")
    print("};")


main()
