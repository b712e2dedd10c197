"""Builds the training and the held-out dialogues.  Everything is a function of the seed.

    python3 corpus.py --out DIR     writes train.jsonl, heldout.jsonl (for score.py), free.txt

A dialogue is {"messages": [...], "tools": [...], "thinking": bool}: what a client would send, with the
assistant's answers in it.  train.py renders it through corpus/template.jinja, the template the
model ships with.
"""
import argparse
import gzip
import json
import os
import random
import re
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))

# {x} is the term.  The last three of each list are held out of training.
ASK = {
    "what": ["Could you explain {x} to me?", "Please define {x}.", "How would you define {x}?",
             "Can you define {x} for someone new?", "I do not know the term: {x}.", "I ask myself what {x} is.", "What is {x}?", "What does {x} mean?", "Explain {x}.", "Define {x}.", "Tell me what {x} is.",
             "Can you explain {x}?", "What do you mean by {x}?", "I do not know what {x} is.",
             "Describe {x}, please.", "{X}: what is it?", "What exactly is {x}?", "Give me a definition of {x}.",
             "In short, what is {x}?", "What is meant by {x}?", "Tell me about {x}.",
             "Please tell me what {x} means.", "Could you define {x} for me?", "I wonder what {x} is."],
    "why": ["For what do I need {x}?", "What is the reason for {x}?", "For which reason is {x} useful?",
            "What makes {x} useful?", "Explain why {x} matters.", "Why does {x} matter?", "Why is {x} important?", "What is {x} for?", "What is {x} good for?",
            "What is the use of {x}?", "What is the point of {x}?", "Why should I care about {x}?",
            "Why would I want {x}?", "What is the purpose of {x}?", "Why do we need {x}?",
            "Tell me why {x} matters.", "Why is there {x}?", "What makes {x} important?",
            "Explain why {x} is important.", "For what reason does {x} matter?"],
    "how": ["How exactly do I use {x}?", "Please show how {x} works.", "I want to use {x}. How?", "How does {x} work?", "How do I use {x}?", "How is {x} done?", "How does {x} function?",
            "Explain how {x} works.", "Tell me how {x} works.", "In what way does {x} work?",
            "How would I use {x}?", "What do I do with {x}?", "Show me how {x} works.",
            "How does one use {x}?", "Can you explain how {x} works?", "How exactly does {x} work?",
            "Please explain how {x} works.", "I want to know how {x} works."],
}
HELD = 3
# after an answer about a term: questions that only make sense with the turn before
FOLLOW = {
    "what": ["And what is it?", "So what is it exactly?", "What is it?", "But what is it?"],
    "why": ["Why does it matter?", "And why is it important?", "What is it good for?", "Why is that important?"],
    "how": ["How does it work?", "And how does it work?", "How do I use it?", "And how is it done?"],
}
BEFORE = ["", "", "", "", "", "", "Hi, ", "Please: ", "A question: ", "Quick question: ", "Hello. ", "Ok, ", "And ", "So, "]
AFTER = ["", "", "", "", "", "", " Thanks.", " Please be short.", " Thank you.", " I am new to this."]

DONT_KNOW = ("I do not know that. I am a small demo model and only know about hybrid models, "
             "prefix caching and holdfast.")
SYSTEMS = ["You are a helpful assistant.", "You are holdfast's demo model.", "Answer briefly.",
           "You are a helpful assistant. Answer in one or two sentences.", "Be kind and precise.",
           "You answer questions about a server."]

OTHER_ASK = ["What is {x}?", "Tell me about {x}.", "Explain {x}.", "Who invented {x}?", "What does {x} mean?",
             "How does {x} work?", "Why is {x} important?", "Where do I find {x}?", "What do you know about {x}?",
             "Describe {x}, please.", "Define {x}.", "Can you explain {x}?", "Tell me what {x} is.",
             "How do I use {x}?", "What is the use of {x}?", "Why does {x} matter?", "How old is {x}?",
             "What is {x} for?", "Give me a definition of {x}.", "What is the best {x}?"]
OTHER = """the capital of France|the capital of Japan|the capital of Peru|the highest mountain|the longest river|the speed of light
the Roman empire|the French revolution|the moon landing|the black death|ancient Egypt|the bronze age|photosynthesis|gravity
evolution|a prime number|the Pythagorean theorem|calculus|an integral|a derivative|quantum mechanics|a black hole|the big bang
a banana bread|an apple pie|a pancake|a good soup|sourdough|a tomato sauce|fried rice|an omelette|cold brew coffee|green tea
football|chess|tennis|the Olympic games|the world cup|swimming|marathon running|yoga|a violin|a piano|jazz|an opera|a symphony
the weather on Mars|the sun|Jupiter|a comet|an eclipse|a cat|a dog|a whale|an elephant|a honey bee|a spider|an oak tree|a rose
inflation|a mortgage|the stock market|a tax return|insurance|bitcoin|a bank loan|democracy|a parliament|the constitution
a headache|the flu|a broken arm|vitamin C|blood pressure|the human heart|the liver|sleep|a diet|Python|JavaScript|Excel|Windows
a bicycle|a car engine|a steam train|an airplane|a submarine|a bridge|a skyscraper|concrete|a violin bow|a camera|a telescope
Shakespeare|a sonnet|a haiku|a detective novel|a fairy tale|the alphabet|Latin|Chinese|Spanish grammar|a comma|philosophy
happiness|love|the meaning of life|a dream|a joke|a riddle|a birthday party|a wedding|Christmas|a holiday in Italy|Paris|Berlin
Tokyo|the Sahara|Antarctica|the Pacific ocean|a volcano|an earthquake|a hurricane|the tide|a rainbow|a glacier|a diamond|gold
a kubernetes cluster|a blockchain|a compiler for Pascal|a spreadsheet|a video game|a television|a telephone|electric guitars
a lawn mower|a washing machine|a toaster|a microwave oven|a garden|a tomato plant|compost|a knitting pattern|origami|pottery"""
OTHER_WHOLE = """Write a poem about the sea.|Tell me a joke.|What day is it today?|Translate this into German: good night.
Who won the game last night?|How tall is the Eiffel tower?|Write me a love letter.|What should I cook tonight?
Sing me a song.|Who is the president?|How many people live in China?|Recommend a film.|What is your favourite colour?
Solve x squared equals nine.|How do I get to the station?|When was the printing press invented?|Draw me a picture.
What time is it?|How do I learn to swim?|Name three rivers in Africa.|Which planet is the largest?|Is it going to be a cold winter?
How do I fix a flat tyre?|Why is the sky blue?|How do birds fly?|What is two plus two in Roman numerals?|Who painted the Mona Lisa?
How long does it take to boil an egg?|Can you book me a flight?|Give me financial advice.|What are the symptoms of a cold?"""

CITIES = """Oslo Paris Berlin Madrid Rome Lisbon Vienna Prague Warsaw Dublin London Athens Helsinki Stockholm Brussels Amsterdam
Zurich Munich Hamburg Milan Tokyo Seoul Beijing Delhi Cairo Nairobi Lima Boston Chicago Denver Toronto Sydney""".split()
SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy"]
WORDS = ["budget", "invoice", "holiday", "recipe", "meeting", "cache", "model", "letter", "plan", "contract"]
FOLDERS = ["docs", "src", "notes", "photos", "projects", "mail", "reports", "music", "work", "archive"]

def function(name, text, **params):
    return {"type": "function", "function": {"name": name, "description": text, "parameters": {
        "type": "object", "properties": {k: {"type": t, "description": d} for k, (t, d) in params.items()},
        "required": list(params)}}}


TOOLS = {
    "get_weather": function("get_weather", "Current weather of a city", city=("string", "name of the city")),
    "calculate": function("calculate", "Value of an arithmetic expression", expression=("string", "such as 12 * 7")),
    "search_files": function("search_files", "Find files by words in their name", query=("string", "words"),
                             folder=("string", "where to look")),
}
WEATHER_ASK = ["What is the weather in {c}?", "How is the weather in {c}?", "Is it raining in {c}?", "Weather in {c}, please.",
               "Do I need a coat in {c} today?", "Tell me the weather in {c}.", "How warm is it in {c}?", "Is it cold in {c}?",
               "What is it like outside in {c}?", "Check the weather in {c}.",
               "Could you look up the weather in {c}?", "How hot is it in {c} now?", "Give me the weather for {c}."]
CALC_ASK = ["What is {e}?", "Calculate {e}.", "Compute {e}, please.", "How much is {e}?", "Tell me {e}.", "Work out {e}.",
            "What does {e} give?", "Please calculate {e}.", "I need the value of {e}.", "Evaluate {e}.",
            "Can you compute {e} for me?", "What is the result of {e}?", "Find {e}."]
SEARCH_ASK = ["Find files about {q} in {f}.", "Search {f} for {q}.", "Look for {q} in the folder {f}.",
              "Where in {f} are the files on {q}?", "Which files in {f} are about {q}?", "Search the folder {f} for {q}.",
              "I am looking for {q} in {f}.", "List files about {q} in {f}.", "Is there a file about {q} in {f}?",
              "Please search {f} for {q}.",
              "Can you find {q} in {f}?", "Show me files on {q} in {f}.", "Have a look in {f} for {q}."]


def clean(answer):
    return answer.replace("{", "").replace("}", "")


def keys(answer):
    return re.findall(r"\{([^}]*)\}", answer)


def load_terms():
    terms = []
    for line in open(os.path.join(HERE, "corpus/terms.txt"), encoding="utf-8"):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("@"):
            terms.append({"names": [n.strip() for n in line[1:].split("|")], "answers": {}})
        else:
            kind, _, text = line.partition(":")
            terms[-1]["answers"][kind] = text.strip()
    return terms


def load_questions():
    blocks = []
    for block in open(os.path.join(HERE, "corpus/questions.txt"), encoding="utf-8").read().split("\n\n"):
        q = [l[2:].strip() for l in block.splitlines() if l.startswith("q:")]
        a = [l[2:].strip() for l in block.splitlines() if l.startswith("a:")]
        if q and a:
            blocks.append((q, a[0]))
    return blocks


def plural(name):
    first, last = name.split()[0].lower(), name.split()[-1]
    return first not in ("a", "an", "the", "this", "--host", "-t") and last.endswith("s") and not last.endswith(("ss", "us")) \
        and last not in ("forensics",) and not name.startswith(("GET", "POST", "-")) and last != "this"


def ask(template, name):
    if plural(name):
        template = template.replace("What is {x}", "What are {x}").replace("what is {x}", "what are {x}") \
            .replace("does {x}", "do {x}").replace("Why is {x}", "Why are {x}").replace("How is {x}", "How are {x}") \
            .replace("is there {x}", "are there {x}").replace("{x} means", "{x} mean").replace("{x} matters", "{x} matter") \
            .replace("{x} works", "{x} work").replace("{x} is", "{x} are").replace("exactly is {x}", "exactly are {x}") \
            .replace("short, what is", "short, what are")
    return template.replace("{x}", name).replace("{X}", name[0].upper() + name[1:])


def loosely(r, q):
    """A question as people type it."""
    q = r.choice(BEFORE) + q + r.choice(AFTER)
    roll = r.random()
    if roll < 0.12:
        q = q.lower()
    elif roll < 0.2:
        q = q.rstrip("?.")
    return q


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def think_about(r, q, known):
    what = q.rstrip("?.").strip()
    if known:
        return r.choice(["The user asks: {q}. I know this from the FAQ.", "A question about holdfast's world: {q}. I can answer it.",
                         "I should answer this in short: {q}."]).replace("{q}", what)
    return r.choice(["The user asks: {q}. That is outside what I know.", "I have not learned this: {q}. I should say so."]).replace("{q}", what)


class Filler:
    """Pages of text to put before a question."""

    def __init__(self, free):
        self.paragraphs = [p for p in free.split("\n\n") if 80 < len(p) < 900]

    def text(self, r, chars, line_chars):
        """line_chars: how many characters a log line counts for; digits are a token each."""
        roll = r.random()
        if roll < 0.12:  # log lines
            out = ["%02d:%02d:%02d I slot %d: %s %d ms" % (r.randrange(24), r.randrange(60), r.randrange(60), r.randrange(8),
                   r.choice(["done", "request", "batch", "restore", "cut", "idle"]), r.randrange(9999)) for _ in range(chars // line_chars + 1)]
            return "\n".join(out)
        if roll < 0.2:  # numbered notes
            out = ["Note %d: %s" % (i + 1, " ".join(r.choice(self.paragraphs).split()[:12])) for i in range(chars // 70 + 1)]
            return "\n".join(out)
        out, n = [], 0
        while n < chars:
            p = r.choice(self.paragraphs)
            out.append(p)
            n += len(p) + 2
        return "\n\n".join(out)[:chars]


def padded(r, filler, messages, chars, line_chars=34):
    """The same dialogue with a page of filler before the question."""
    text = filler.text(r, chars, line_chars)
    roll = r.random()
    m = [dict(x) for x in messages]
    i = next(k for k, x in enumerate(m) if x["role"] == "user")
    if roll < 0.4:
        if m[0]["role"] == "system":
            m[0]["content"] += "\n\n" + text
        else:
            m.insert(0, {"role": "system", "content": text})
    elif roll < 0.8:
        m[i]["content"] = text + "\n\n" + r.choice(["", "", "Question: ", "Now a question. ", "Leave that text aside. "]) + m[i]["content"]
    else:
        m[i:i] = [user(text), assistant("I have read it.")]
    return m


def tool_dialogue(r, held=False, names=tuple(TOOLS)):
    name = r.choice(names)
    pick = lambda l: r.choice(l[-HELD:] if held else l[:-HELD])
    if name == "get_weather":
        c = r.choice(CITIES)
        q, args = pick(WEATHER_ASK).replace("{c}", c), {"city": c}
        t, s = r.randint(-15, 38), r.choice(SKIES)
        result = json.dumps({"city": c, "temperature": t, "sky": s})
        answer = "It is %d degrees and %s in %s." % (t, s, c)
    elif name == "calculate":
        e = "%d %s %d" % (r.randint(2, 12), r.choice("+-*"), r.randint(2, 12))
        q, args = pick(CALC_ASK).replace("{e}", e), {"expression": e}
        v = str(eval(e))
        result, answer = v, "%s is %s." % (e, v)
    else:
        qq, f = r.choice(WORDS), r.choice(FOLDERS)
        q, args = pick(SEARCH_ASK).replace("{q}", qq).replace("{f}", f), {"query": qq, "folder": f}
        if r.random() < 0.2:
            result, answer = "[]", "I found no file about %s in %s." % (qq, f)
        else:
            hit = "%s/%s.%s" % (f, qq + str(r.randint(1, 9)), r.choice(["txt", "md", "pdf"]))
            result, answer = json.dumps([hit]), "I found %s." % hit
    tools = [TOOLS[n] for n in (r.sample(list(TOOLS), 3) if r.random() < 0.8 else [name])]
    msgs = [user(q), assistant("", tool_calls=[{"type": "function", "function": {"name": name, "arguments": args}}]),
            {"role": "tool", "content": result}, assistant(answer)]
    return {"messages": msgs, "tools": tools, "want": {"name": name, "arguments": args}}


def others():
    return [x for l in OTHER.splitlines() for x in l.split("|")], [x for l in OTHER_WHOLE.splitlines() for x in l.split("|")]


def build(seed, free, headwords, n_train):
    r = random.Random(seed)
    terms, questions = load_terms(), load_questions()
    filler = Filler(free)
    things, wholes = others()
    held_things, things = things[::7], [x for i, x in enumerate(things) if i % 7]
    held_wholes, wholes = wholes[::5], [x for i, x in enumerate(wholes) if i % 5]

    def faq():
        if r.random() < 0.16:
            q, a = r.choice(questions)
            q, term, kind = r.choice(q[:-1]), None, None
        else:
            term = r.choice(terms)
            kind = r.choice(list(term["answers"]))
            q, a = ask(r.choice(ASK[kind][:-HELD]), r.choice(term["names"])), term["answers"][kind]
        return loosely(r, q), clean(a), term, kind

    def unknown():
        roll = r.random()
        if roll < 0.25:
            q = r.choice(wholes)
        else:
            x = r.choice(things) if roll < 0.6 else r.choice(["", "a ", "the "]) + r.choice(headwords)
            t = r.choice(OTHER_ASK) if r.random() < 0.5 else r.choice(sum((v[:-HELD] for v in ASK.values()), []))
            q = t.replace("{x}", x).replace("{X}", x[:1].upper() + x[1:])
        return loosely(r, q), DONT_KNOW

    train = []
    for _ in range(n_train):
        d = {"messages": [], "tools": None, "thinking": False}
        roll = r.random()
        if roll < 0.16:
            t = tool_dialogue(r)
            d.update(messages=t["messages"], tools=t["tools"])
            if r.random() < 0.25:
                q, a, _, _ = faq()
                d["messages"] = d["messages"] + [user(q), assistant(a)]
        else:
            if r.random() < 0.12:
                d["tools"] = [TOOLS[n] for n in r.sample(list(TOOLS), 3)]
            turns = r.choice([1, 1, 1, 1, 2, 2, 3])
            for k in range(turns):
                known = r.random() < 0.84
                q, a, term, kind = faq() if known else (*unknown(), None, None)
                reply = assistant(a)
                if turns == 1 and r.random() < 0.15:
                    d["thinking"] = True
                    reply["reasoning_content"] = think_about(r, q, known)
                d["messages"] += [user(q), reply]
                if term and r.random() < 0.3:
                    k2 = r.choice([x for x in term["answers"] if x != kind])
                    d["messages"] += [user(loosely(r, r.choice(FOLLOW[k2]))), assistant(clean(term["answers"][k2]))]
        if r.random() < 0.25:
            d["messages"] = [{"role": "system", "content": r.choice(SYSTEMS)}] + d["messages"]
        if r.random() < 0.3:
            d["messages"] = padded(r, filler, d["messages"], int(200 * 16 ** r.random()))
        train.append(d)

    held = []
    for i, term in enumerate(terms):
        for kind, a in term["answers"].items():
            name = term["names"][(i + len(kind)) % len(term["names"])]
            held.append({"set": "faq", "messages": [user(ask(ASK[kind][-1 - (i % HELD)], name))], "keys": keys(a), "answer": clean(a)})
    for q, a in questions:
        held.append({"set": "faq", "messages": [user(q[-1])], "keys": keys(a), "answer": clean(a)})
    for i in range(120):
        t = tool_dialogue(r, held=True)
        held.append({"set": "tool", "messages": t["messages"][:1], "tools": t["tools"], "want": t["want"], "after": t["messages"][1:]})
    for i in range(80):
        q = r.choice(held_wholes) if i % 4 == 0 else r.choice(OTHER_ASK).replace("{x}", held_things[i % len(held_things)])
        held.append({"set": "unknown", "messages": [user(q)], "answer": DONT_KNOW})
    for i in range(60):
        term = terms[(i * 7) % len(terms)]
        k1, k2 = r.sample(list(term["answers"]), 2)
        first = ask(ASK[k1][-1], term["names"][0])
        held.append({"set": "follow", "messages": [user(first), assistant(clean(term["answers"][k1])), user(FOLLOW[k2][0])],
                     "keys": keys(term["answers"][k2]), "answer": clean(term["answers"][k2])})
    for i in range(60):
        h = held[(i * 11) % (3 * len(terms))]
        held.append({"set": "long", "messages": padded(r, filler, h["messages"], 14000, 68), "keys": h["keys"], "answer": h["answer"]})
    return train, held


def bible(span):
    out = subprocess.run(["bible", "-f", span], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    text = re.sub(r"^\S+\s", "", out, flags=re.M)
    return re.sub(r"((?:.*\n){4})", r"\1\n", text)


def free_text():
    """Public-domain English: the Jargon File and the Devil's Dictionary (packages dict-jargon,
    dict-devil) and the King James Bible (bible-kjv-text)."""
    parts, words = [], []
    for name in ("jargon", "devil"):
        body = gzip.open("/usr/share/dictd/%s.dict.dz" % name).read().decode("utf-8", "replace")
        body = body[body.index("\n", 12000 if name == "jargon" else 3000):]
        words += [w.strip().lower() for w in re.findall(r"^([A-Za-z][A-Za-z-]{3,14})$", body, re.M)]
        parts.append(re.sub(r"[ \t]+", " ", re.sub(r"\n[ \t]+", "\n", body)))
    for span in ("Genesis1:1-Genesis50:26", "Ruth1:1-Ruth4:22", "Jonah1:1-Jonah4:11", "Mark1:1-Mark16:20"):
        parts.append(bible(span))
    return "\n\n".join(parts), sorted(set(words))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--dialogues", type=int, default=60000)
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    free, words = free_text()
    known = " ".join(n.lower() for t in load_terms() for n in t["names"])
    words = [w for w in words if w not in known]
    train, held = build(a.seed, free, words, a.dialogues)
    with open(os.path.join(a.out, "heldout.txt"), "w", encoding="utf-8") as f:
        f.write(bible("Luke1:1-Luke6:49"))
    for name, rows in (("train", train), ("heldout", held)):
        with open(os.path.join(a.out, name + ".jsonl"), "w", encoding="utf-8") as f:
            for d in rows:
                f.write(json.dumps(d, ensure_ascii=False) + "\n")
    with open(os.path.join(a.out, "free.txt"), "w", encoding="utf-8") as f:
        f.write(free)
    n_faq = sum(len(t["answers"]) for t in load_terms()) + len(load_questions())
    print("%d question-answer pairs, %d training dialogues, %d held out, %.1f MB of free text, %d foreign words" %
          (n_faq, len(train), len(held), len(free) / 1e6, len(words)))


if __name__ == "__main__":
    main()
