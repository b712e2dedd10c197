"""Asks a running server the held-out questions, greedily, and counts.

    holdfast serve -m models/demo.gguf &
    python3 score.py --corpus DIR --url http://127.0.0.1:8080

faq, follow, long: every key phrase of the answer is in the reply, which stopped by itself.
tool: one call with the right name and arguments.
result: the answer after the tool's result, word for word (after the call as it should have been).
unknown: the reply says that it does not know.
"""
import argparse
import collections
import json
import os
import re
import urllib.request

import render


def complete(url, prompt):
    body = json.dumps({"prompt": prompt, "n_predict": 120, "temperature": 0, "special": True}).encode()
    req = urllib.request.Request(url + "/completion", body, {"Content-Type": "application/json"})
    r = json.load(urllib.request.urlopen(req, timeout=300))
    return r["content"], r["stop_type"] == "eos"


def parse_call(text):
    m = re.fullmatch(r"\s*<tool_call>\s*<function=([^>\s]+)>\s*(.*?)</function>\s*</tool_call>\s*", text, re.S)
    if not m:
        return None
    args = {k: v.strip() for k, v in re.findall(r"<parameter=([^>\s]+)>\n(.*?)\n</parameter>", m.group(2), re.S)}
    return {"name": m.group(1), "arguments": args}


def right(h, reply):
    if h["set"] == "unknown":
        return "do not know" in reply
    if h["set"] == "tool":
        return parse_call(reply) == h["want"]
    if h["set"] == "result":
        return reply.strip() == h["answer"]
    return all(k.lower() in reply.lower() for k in h["keys"])


def questions(corpus):
    for line in open(os.path.join(corpus, "heldout.jsonl"), encoding="utf-8"):
        h = json.loads(line)
        yield h
        if h["set"] == "tool":
            after = h["after"]
            yield {"set": "result", "messages": h["messages"] + after[:2], "tools": h["tools"], "answer": after[2]["content"]}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--url", default="http://127.0.0.1:8080")
    ap.add_argument("--misses", type=int, default=5, help="print so many of each set")
    a = ap.parse_args()
    good, all_, stops, shown = (collections.Counter() for _ in range(4))
    for h in questions(a.corpus):
        reply, stopped = complete(a.url, render.prompt(h["messages"], h.get("tools")))
        ok = stopped and right(h, reply)
        all_[h["set"]] += 1
        good[h["set"]] += ok
        stops[h["set"]] += stopped
        if not ok and shown[h["set"]] < a.misses:
            shown[h["set"]] += 1
            print("miss (%s): %s\n   said: %s\n   want: %s" % (h["set"], h["messages"][-1]["content"][-90:], reply.strip()[:160],
                                                              h.get("answer", h.get("want"))))
    for s in all_:
        print("%-8s %3d of %3d right, %.1f %%; stopped by itself %.1f %%" %
              (s, good[s], all_[s], 100.0 * good[s] / all_[s], 100.0 * stops[s] / all_[s]))


if __name__ == "__main__":
    main()
