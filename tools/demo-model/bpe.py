"""Trains the demo model's byte-level BPE (pre-tokenizer qwen35).

    python3 bpe.py --corpus DIR --vocab 6144 --out DIR/tokenizer.json
"""
import argparse
import collections
import heapq
import json
import os
import re

import render
import tokenizer as TK

SPECIALS = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|>
<|box_start|> <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|>
<|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|>
<|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response>
</tool_response> <think> </think>""".split()


def train_merges(texts, n_merges):
    """Greedy BPE with counts kept up to date; ties go to the smaller pair."""
    words = collections.Counter()
    for t in texts:
        words.update(TK.pre_split(t, "qwen35"))
    seqs = [[TK.B2U[b] for b in w.encode()] for w in words]
    freq = list(words.values())
    count, where = collections.Counter(), collections.defaultdict(set)
    for i, s in enumerate(seqs):
        for p in zip(s, s[1:]):
            count[p] += freq[i]
            where[p].add(i)
    heap = [(-c, p) for p, c in count.items()]
    heapq.heapify(heap)
    merges = []
    while len(merges) < n_merges and heap:
        c, best = heapq.heappop(heap)
        if -c != count[best]:
            continue  # stale
        if -c < 2:
            break
        merges.append(best)
        touched = set()
        for i in list(where[best]):
            s = seqs[i]
            for p in zip(s, s[1:]):
                count[p] -= freq[i]
                touched.add(p)
            out, k = [], 0
            while k < len(s):
                if k + 1 < len(s) and (s[k], s[k + 1]) == best:
                    out.append(s[k] + s[k + 1])
                    k += 2
                else:
                    out.append(s[k])
                    k += 1
            seqs[i] = out
            for p in zip(out, out[1:]):
                count[p] += freq[i]
                where[p].add(i)
                touched.add(p)
        for p in touched:
            if count[p] > 0:
                heapq.heappush(heap, (-count[p], p))
    return merges


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--vocab", type=int, default=6144)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    special = re.compile("|".join(re.escape(s) for s in SPECIALS))
    texts = special.split(open(os.path.join(a.corpus, "free.txt"), encoding="utf-8").read())
    for i, line in enumerate(open(os.path.join(a.corpus, "train.jsonl"), encoding="utf-8")):
        if i >= 6000:
            break
        texts += special.split(render.dialogue(json.loads(line)))
    merges = train_merges(texts, a.vocab - 256 - len(SPECIALS))
    base = [TK.B2U[b] for b in range(256)]
    tokens = sorted(base, key=lambda c: (ord(c) >= 256, ord(c)))
    seen = set(tokens)
    for x, y in merges:
        if x + y not in seen:
            seen.add(x + y)
            tokens.append(x + y)
    tokens += ["[PAD%d]" % i for i in range(a.vocab - len(SPECIALS) - len(tokens))]
    types = [TK.UNUSED if t.startswith("[PAD") else TK.NORMAL for t in tokens]
    for s in SPECIALS:
        tokens.append(s)
        types.append(TK.CONTROL if s.startswith("<|") else TK.USER_DEFINED)
    with open(a.out, "w", encoding="utf-8") as f:
        json.dump({"tokens": tokens, "types": types, "merges": [x + " " + y for x, y in merges]}, f, ensure_ascii=False)
    print("%d tokens, %d merges" % (len(tokens), len(merges)))


if __name__ == "__main__":
    main()
