#!/usr/bin/env python3
"""Renders the templates beside it with jinja2, set up as Hugging Face does for chat templates.

    oracle.py templates      {template: {conversation: text or null for an error}}
    oracle.py snippets FILE  [text or null, ...], snippets being separated by lines of %%

Exit code 77 when jinja2 is not installed.
"""
import copy
import datetime
import glob
import json
import os
import sys

try:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("no jinja2", file=sys.stderr)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2024, 7, 26, 9, 5, 3)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    @jinja2.pass_eval_context
    def _body(self, context, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: NOW.strftime(f)
    return env


def compiled(source):
    """A function of the variables: the text, or None for an error."""
    def failed(e):
        if os.environ.get("ORACLE_ERRORS"):
            print(repr(e), file=sys.stderr)

    def render(variables):
        try:
            # a copy: jinja2's indent filter changes a list it is given by mistake
            return template.render(**copy.deepcopy(variables))
        except Exception as e:
            return failed(e)

    try:
        template = ENVIRONMENT.from_string(source)
    except Exception as e:
        failed(e)
        return lambda variables: None
    return render


ENVIRONMENT = environment()


def main():
    out = None
    if sys.argv[1] == "templates":
        with open(os.path.join(HERE, "conversations.json"), encoding="utf-8") as f:
            conversations = json.load(f)
        out = {}
        for path in sorted(glob.glob(os.path.join(HERE, "*.jinja"))):
            with open(path, encoding="utf-8", newline="") as f:
                render = compiled(f.read())
            out[os.path.basename(path)] = {n: render(v) for n, v in conversations.items()}
    else:
        with open(os.path.join(HERE, "snippets.json"), encoding="utf-8") as f:
            variables = json.load(f)
        with open(sys.argv[2], encoding="utf-8", newline="") as f:
            out = [compiled(s)(variables) for s in f.read().split("\n%%\n")]
    json.dump(out, sys.stdout)


main()
