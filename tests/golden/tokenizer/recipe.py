#!/usr/bin/env python3
"""Writes small.json: a small byte-level vocabulary and the tokens of some texts, per pre-tokeniser.

    recipe.py > small.json          (needs the module `regex`, Debian's python3-regex)

Independent of the C: the vocabularies' own regular expressions, merging by rescanning the whole
piece, special tokens by splitting strings.
"""
import json
import sys

import regex

PRE = {
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
              r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
             r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|"
                 r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
                 r"\s+(?!\S)|\s+",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}
SPECIAL = [("<|endoftext|>", 3), ("<|im_start|>", 3), ("<|im_end|>", 3), ("<think>", 4),
           ("</think>", 4), ("<tool_call>", 4), ("</tool_call>", 4), ("<|im", 4), ("im_start", 3),
           ("[UNK]", 2), ("[PAD0]", 5), ("==", 4)]
TRAIN = """
The cache keeps one tree of token prefixes; slots are scratch, and every miss is explained. A state at
one position cannot be rewound, so snapshots are taken where clients will come back: at the end of a
prompt, at the end of a reply, and at the point where two requests parted. It's what we'd call a branch.
for (size_t i = 0; i < n; i++) { printf("%d\\n", x[i]); return 42 + 1000; }
    if (!ok) { goto out; }  // 12345 67890
{"name": "get_weather", "arguments": {"city": "Berlin", "days": 3}}
Größe, Äpfel, naïve café; Привет, мир! こんにちは世界 안녕 😀😀 नमस्ते
"""
TEXTS = [
    "", " ", "  ", "\n", "\n\n \n", "a", " a", "  a", "\t\ta\r\n\r\nb  \n   c ", "The cache keeps a tree.",
    "It's IT'S it'S we'd WE'LL they're 'x ''s 's", "3.14159 1,000,000 12345678 x1y22",
    "for (size_t i = 0; i < n; i++) { printf(\"%d\\n\", x[i]); }", "====== == = ===",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|", "a<think>b</think>c<tool_call>", "[UNK][PAD0]im_start",
    "<|im<|im_start|><|im_end|>x<|imim_start", "Größe naïve cafe\u0301 e\u0301", "नमस्ते दुनिया", "Привет, мир!",
    "こんにちは世界。 안녕", "😀😀 👩‍👩‍👧‍👦", "a\u00a0b\u2003c\u3000d", "\u0000\u0001\u007f\u00ad", "ſ 'ſ ’s", "½²³ Ⅷ ٣٤٥",
    "   indented\n        more\n\n\n", "{\"name\": \"get_weather\"}", "x" * 50 + "=" * 51, "a \t b\t \tc",
]


def alphabet():
    keep = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    rest = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


A = alphabet()


def merge(sym, pair):
    out, i = [], 0
    while i < len(sym):
        if tuple(sym[i:i + 2]) == pair:
            out.append(sym[i] + sym[i + 1])
            i += 2
        else:
            out.append(sym[i])
            i += 1
    return out


def train(n):
    pieces = [[A[b] for b in p.encode()] for p in regex.findall(PRE["qwen35"], TRAIN)]
    merges = []
    while len(merges) < n:
        count = {}
        for p in pieces:
            for pair in zip(p, p[1:]):
                count[pair] = count.get(pair, 0) + 1
        if not count:
            break
        best = max(sorted(count), key=lambda x: count[x])
        merges.append(best)
        pieces = [merge(p, best) for p in pieces]
    return merges


MERGES = train(300)
TOKENS = [A[b] for b in sorted(A, key=lambda b: A[b])] + [a + b for a, b in MERGES] + [s for s, _ in SPECIAL]
TYPES = [1] * (256 + len(MERGES)) + [t for _, t in SPECIAL]
ID = {t: i for i, t in enumerate(TOKENS)}


def bpe(piece, whole):
    if whole and piece in ID:
        return [piece]
    sym = list(piece)
    while True:
        for m in MERGES:
            if m in zip(sym, sym[1:]):
                sym = merge(sym, m)
                break
        else:
            return sym


def encode(text, pre, parse_special):
    frags = [text]
    for s, t in sorted(SPECIAL, key=lambda x: -len(x[0])):
        if t == 5 or (t != 4 and not parse_special):
            continue
        cut = []
        for f in frags:
            if isinstance(f, int):
                cut.append(f)
                continue
            for n, part in enumerate(f.split(s)):
                cut += ([ID[s]] if n else []) + ([part] if part else [])
        frags = cut
    ids = []
    for f in frags:
        if isinstance(f, int):
            ids.append(f)
            continue
        pieces = regex.findall(PRE[pre], f)
        assert "".join(pieces) == f
        for p in pieces:
            ids += [ID[s] for s in bpe("".join(A[b] for b in p.encode()), pre == "llama-bpe")]
    return ids


cases = [{"text": t, "pre": pre, "parse_special": s, "ids": encode(t, pre, s)}
         for t in TEXTS for pre in PRE for s in (True, False)]
print(json.dumps({"tokens": TOKENS, "types": TYPES, "merges": [a + " " + b for a, b in MERGES],
                  "eos": ID["<|im_end|>"]}, separators=(",", ":"))[:-1] + ',"cases":[')
print(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]}")
