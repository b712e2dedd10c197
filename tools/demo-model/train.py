"""Trains the demo model on CPU (bfloat16 matrix products, float32 everything else).

    python3 train.py --corpus DIR --out DIR --steps 1200

Writes DIR/ckpt.pt every --save steps (and goes on from it when it is there) and DIR/loss.csv.
"""
import argparse
import json
import os
import random
import re
import time

import torch
import torch.nn.functional as F

import corpus
import model
import render
import tokenizer as TK


LONG = 1200  # characters of a dialogue; of those above most are left out: answers are learned in the short ones


CALLS = ("get_weather", "calculate", "search_files", "search_files", "search_files")  # two arguments are hardest


class Encoder:
    """The reference tokenizer with a memory for pieces: text is mostly the same words."""

    def __init__(self, path):
        d = json.load(open(path, encoding="utf-8"))
        kv = {"tokenizer.ggml.tokens": d["tokens"], "tokenizer.ggml.token_type": d["types"],
              "tokenizer.ggml.merges": d["merges"], "tokenizer.ggml.pre": "qwen35"}
        self.tk = TK.Tokenizer(kv)
        self.id = {t: i for i, t in enumerate(d["tokens"])}
        self.specials = [t for t, k in zip(d["tokens"], d["types"]) if k in (TK.CONTROL, TK.USER_DEFINED)]
        self.cut = re.compile("(" + "|".join(re.escape(s) for s in sorted(self.specials, key=len, reverse=True)) + ")")
        self.memo = {}

    def piece(self, p):
        ids = self.memo.get(p)
        if ids is None:
            symbols = self.tk.bpe("".join(TK.B2U[b] for b in p.encode()))
            ids = self.memo[p] = [self.id[x] for x in symbols]
        return ids

    def __call__(self, text):
        out = []
        for part in self.cut.split(text):
            if part in self.id and part.startswith("<"):
                out.append(self.id[part])
            elif part:
                for p in TK.pre_split(part, "qwen35"):
                    out += self.piece(p)
        return out


def weights(ids, enc):
    """1 where the assistant speaks, little elsewhere: prompts are read, not written."""
    start, end = enc.id["<|im_start|>"], enc.id["<|im_end|>"]
    a = enc("assistant\n")
    think = enc("<think>\n\n</think>\n\n")
    w, i, n = [0.1] * len(ids), 0, len(ids)
    while i < n:
        if ids[i] == start and ids[i + 1:i + 1 + len(a)] == a:
            i += 1 + len(a)
            if ids[i:i + len(think)] == think:
                i += len(think)
            elif i < n and ids[i] == enc.id["<think>"]:
                i += 2
            while i < n:
                w[i] = 1.0
                i += 1
                if ids[i - 1] == end:
                    break
        else:
            i += 1
    return w


def stream(enc, place, seed, start):
    """Endless (ids, weights) of documents: dialogues, and for each of them a chance of plain English and of
    another call of a tool."""
    lines = open(os.path.join(place, "train.jsonl"), encoding="utf-8").read().splitlines()
    free = open(os.path.join(place, "free.txt"), encoding="utf-8").read()
    r = random.Random(seed + start)
    eot = enc.id["<|endoftext|>"]
    while True:
        r.shuffle(lines)
        for line in lines:
            if len(line) > LONG and r.random() < 0.7:
                continue
            if r.random() < 0.03:
                at = r.randrange(len(free) - 1500)
                ids = enc(free[at:at + 1500])
                yield ids + [eot], [0.3] * (len(ids) + 1)
            if r.random() < 0.3:
                call = corpus.tool_dialogue(r, names=CALLS)
                ids = enc(render.dialogue({"messages": call["messages"], "tools": call["tools"], "thinking": False}))
                yield ids + [eot], weights(ids, enc) + [0.1]
            ids = enc(render.dialogue(json.loads(line)))
            yield ids + [eot], weights(ids, enc) + [0.1]


def batches(docs, length, tokens):
    """Steps of so many tokens: documents laid end to end in rows of length + 1.  One that does not fit any more begins the
    next row, one longer than a row is cut."""
    room = length + 1
    ids, w = [], []
    while True:
        rows, ws = [], []
        while len(rows) < tokens // length:
            more, weight = next(docs)
            if len(ids) + len(more) > room and ids:
                rows.append(ids + [0] * (room - len(ids)))
                ws.append(w + [0.0] * (room - len(w)))
                ids, w = [], []
            ids, w = (ids + more)[:room], (w + weight)[:room]
        yield torch.tensor(rows), torch.tensor(ws)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, default=1200)
    ap.add_argument("--batch", type=int, default=2048, help="tokens of a step")
    ap.add_argument("--long-from", type=float, default=0.8, help="share of the steps after which rows are 2048 long")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--save", type=int, default=100)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    os.makedirs(a.out, exist_ok=True)
    enc = Encoder(os.path.join(a.corpus, "tokenizer.json"))
    net = model.Model(model.Config())
    decay = [p for p in net.parameters() if p.ndim >= 2]
    other = [p for p in net.parameters() if p.ndim < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": other, "weight_decay": 0.0}],
                            lr=a.lr, betas=(0.9, 0.98))
    step, seen, ckpt = 0, 0, os.path.join(a.out, "ckpt.pt")
    if os.path.exists(ckpt):
        c = torch.load(ckpt)
        net.load_state_dict(c["model"])
        opt.load_state_dict(c["opt"])
        step, seen = c["step"], c["tokens"]
        print("going on from step %d" % step, flush=True)
    docs = stream(enc, a.corpus, a.seed, step)
    feed, length, t0, before = None, 0, time.time(), seen
    log = open(os.path.join(a.out, "loss.csv"), "a")
    while step < a.steps:
        want = 2048 if step >= a.long_from * a.steps else 1024
        if want != length:
            length, feed = want, batches(docs, want, a.batch)
        x, w = next(feed)
        lr = a.lr * min(1.0, (step + 1) / 60) * max(0.02, 1.0 - step / a.steps)
        for g in opt.param_groups:
            g["lr"] = lr
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = net(x[:, :-1])
        loss_at = F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten(), reduction="none").view(x.shape[0], -1)
        wt = w[:, 1:]
        loss = (loss_at * wt).sum() / wt.sum().clamp_min(1.0)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        step += 1
        seen += x.numel()
        full = wt >= 1.0
        said = loss_at.detach()[full].mean().item() if full.any() else float("nan")
        log.write("%d,%.4f,%.4f,%.6f,%d\n" % (step, loss.item(), said, lr, seen))
        log.flush()
        if step % 50 == 0:
            print("step %d  loss %.3f  answers %.3f  %.0f tok/s" % (step, loss.item(), said, (seen - before) / (time.time() - t0)), flush=True)
        if step % a.save == 0 or step == a.steps:
            torch.save({"model": net.state_dict(), "opt": opt.state_dict(), "step": step, "tokens": seen}, ckpt + ".tmp")
            os.replace(ckpt + ".tmp", ckpt)


if __name__ == "__main__":
    main()
