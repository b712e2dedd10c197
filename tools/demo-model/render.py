"""Dialogues to text, through the template that the model ships with, as a server would."""
import json
import os

import jinja2
import jinja2.sandbox

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = open(os.path.join(HERE, "corpus/template.jinja"), encoding="utf-8").read()


def _raise(message):
    raise jinja2.TemplateError(message)


_env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
_env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
_env.globals["raise_exception"] = _raise
_template = _env.from_string(SOURCE)


def prompt(messages, tools=None, thinking=False):
    """What the server evaluates before the answer."""
    return _template.render(messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=thinking)


def turns(d):
    """(prompt, answer) for every assistant message: the text before it and what the model must say,
    <|im_end|> included."""
    for i, m in enumerate(d["messages"]):
        if m["role"] != "assistant":
            continue
        before = prompt(d["messages"][:i], d.get("tools"), d.get("thinking", False))
        # the whole conversation up to here, rendered as history after its own user message
        whole = _template.render(messages=d["messages"][:i + 1], tools=d.get("tools"), add_generation_prompt=False)
        if d.get("thinking"):
            answer = m.get("reasoning_content", "") + "\n</think>\n\n" + m["content"] + "<|im_end|>"
        else:
            answer = whole[whole.rindex("</think>\n\n") + len("</think>\n\n"):].rstrip("\n")
        yield before, answer


def dialogue(d):
    """One training text: the last turn's prompt and its answer."""
    before, answer = list(turns(d))[-1]
    return before + answer + "\n"
