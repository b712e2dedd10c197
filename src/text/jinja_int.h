/* jinja_int.h - what the interpreter's files share: tokens, nodes, values, a run.
 *
 *   jinja_lex    source -> tokens        (white space control happens here)
 *   jinja_parse  tokens -> nodes
 *   jinja_eval   nodes -> output         (scopes, statements, operators)
 *   jinja_value  strings, equality, order, repr, JSON
 *   jinja_lib    filters, tests, functions;  jinja_method  methods of strings, lists, dicts
 */
#ifndef HOLDFAST_TEXT_JINJA_INT_H
#define HOLDFAST_TEXT_JINJA_INT_H

#include "base/arena.h"
#include "text/jinja.h"

/* ---- tokens ---- */

enum tok {
    TOK_EOF,
    TOK_DATA,      /* text: as it will be written */
    TOK_BLOCK,     /* {% */
    TOK_BLOCK_END, /* %} */
    TOK_VAR,       /* {{ */
    TOK_VAR_END,   /* }} */
    TOK_NAME,
    TOK_STRING, /* text: decoded */
    TOK_INT,
    TOK_FLOAT,
    TOK_OP /* op */
};

enum op {
    OP_NONE,
    OP_ADD,
    OP_SUB,
    OP_DIV,
    OP_FLOORDIV,
    OP_MUL,
    OP_MOD,
    OP_POW,
    OP_TILDE,
    OP_LBRACKET,
    OP_RBRACKET,
    OP_LPAREN,
    OP_RPAREN,
    OP_LBRACE,
    OP_RBRACE,
    OP_EQ,
    OP_NE,
    OP_GT,
    OP_GE,
    OP_LT,
    OP_LE,
    OP_ASSIGN,
    OP_DOT,
    OP_COLON,
    OP_PIPE,
    OP_COMMA,
    OP_SEMICOLON,
    OP_IN,
    OP_NOT_IN
};

struct jtoken {
    enum tok kind;
    enum op op;
    uint32_t off; /* in jinja.source */
    struct str text;
    union {
        int64_t i;
        double f;
    };
};

struct jtokens {
    struct jtoken *v;
    size_t n, cap;
};

/* ---- values ---- */

enum jtype {
    J_ABSENT, /* an argument that was not given; never a template's value */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST, /* and tuples */
    J_DICT,
    J_NAMESPACE,
    J_FUNC,
    J_LOOP
};

struct jval {
    uint8_t type;
    bool tuple;      /* of a J_LIST */
    uint32_t source; /* of a J_DICT: jinja_source.id, or 0 */
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr *s;
        struct jlist *l;
        struct jdict *d;
        struct jfunc *fn;
        struct jloop *loop;
        const char *why; /* of J_UNDEF: what an error says */
    };
};

struct jstr {
    const char *p; /* UTF-8, not terminated */
    size_t n;
    size_t n_chars; /* SIZE_MAX: not counted yet */
    const struct jinja_mark *marks;
    size_t n_marks;
};

struct jlist {
    struct jval *v;
    size_t n, cap;
    uint32_t depth;   /* of the lists and dicts in it; bounded, since much recurses over values */
    bool group;       /* a pair of groupby: .grouper and .list */
    const char *view; /* "dict_keys" ...: iterable, but no list; else NULL */
};

struct jdict { /* in order of insertion */
    struct jval *k, *v;
    size_t n, cap;
    uint32_t depth;
};

struct jargs {
    struct jval *pos;
    size_t n_pos;
    struct str *kw_name;
    struct jval *kw;
    size_t n_kw;
};

struct jrun;
/* Every filter, test, function and method: self is the value before the | or the dot.  False: failed,
 * the run holds the error. */
typedef bool jfn(struct jrun *r, struct jval self, const struct jargs *a, struct jval *out);

struct jfunc {
    const char *name;
    jfn *fn; /* NULL: a macro */
    struct jval self;
    const struct jnode *macro;
    struct jscope *scope; /* where the macro was defined */
};

struct jloop {
    struct jlist *items;
    size_t i;
    uint32_t depth0;
    const struct jnode *node; /* of a recursive loop, else NULL */
    struct jscope *scope;
    bool changed_before;
    struct jval last_changed;
};

/* ---- nodes ---- */

enum jkind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_TUPLE,
    N_LIST,
    N_DICT,
    N_COND,
    N_OR,
    N_AND,
    N_NOT,
    N_COMPARE,
    N_CONCAT,
    N_BINARY,
    N_NEG,
    N_POS,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NSREF,
    /* statements */
    N_DATA,
    N_PRINT,
    N_FOR,
    N_IF,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_CALL_BLOCK,
    N_FILTER_BLOCK,
    N_WITH,
    N_BREAK,
    N_CONTINUE,
    N_GENERATION
};

struct jnode_list {
    struct jnode **v;
    size_t n, cap;
};

/* What the fields hold, per kind:
 *   CONST value; NAME name; TUPLE LIST CONCAT kids; DICT kids: key, value, ...
 *   COND a if b else c (c may be NULL); OR AND NOT NEG POS BINARY a, b, op
 *   COMPARE a, kids, ops; ATTR a, text; ITEM a, b; SLICE a : b : c (NULL where left out)
 *   CALL a, kids, names; FILTER a (NULL: the block's output), fn, kids, names; TEST likewise
 *   NSREF name, text
 *   DATA text; PRINT kids; FOR a target, b iterable, c condition, body, other, flag = recursive,
 *   name = that of `loop`
 *   IF kids: condition, then bodies[i]; other = else; SET a = b; SET_BLOCK a, b filter, body
 *   MACRO name, text, kids: parameters, defaults after them; CALL_BLOCK a call, kids, body
 *   FILTER_BLOCK b, body; WITH kids: target, value, ...; body; GENERATION body */
struct jnode {
    enum jkind kind;
    enum op op;
    uint32_t off;
    uint32_t name; /* index into jinja.names */
    struct str text;
    struct jval value;
    struct jnode *a, *b, *c;
    struct jnode_list kids;
    struct str *names; /* CALL, FILTER, TEST: [n_names] keywords of the last kids */
    size_t n_names;
    struct jnode *star, *star_star; /* *args, **kwargs */
    enum op *ops;                   /* COMPARE: [kids.n] */
    struct jnode_list body, other;
    struct jnode_list *bodies; /* IF: [kids.n] */
    size_t n_params;           /* MACRO, CALL_BLOCK: kids[0 .. n_params), defaults follow */
    bool flag;
    bool uses_varargs, uses_kwargs, uses_caller; /* MACRO */
    jfn *fn;
};

struct jinja {
    struct arena arena; /* nodes, names, source */
    struct str source;  /* newlines normalised */
    struct str *names;  /* every variable's name, once; each with a 0 behind it */
    size_t n_names, names_cap;
    struct jnode_list body;
};

/* Sets err to RC_ARG (or rc) with line and column of off in front; returns rc. */
enum rc jinja_fail_at(const struct jinja *t, uint32_t off, enum rc rc, const char *msg,
                      struct err *err);

NODISCARD enum rc jinja_lex(struct jinja *t, struct jtokens *out, struct err *err);
NODISCARD enum rc jinja_parse(struct jinja *t, const struct jtokens *toks, struct err *err);

/* ---- a run ---- */

struct jvar {
    uint32_t name;
    struct jval value;
    struct jvar *next;
};

struct jscope {
    struct jvar *vars;
    struct jscope *parent; /* NULL: the run's root variables */
    uint32_t loop_depth;
};

/* Where statements write to: the result, or a block's capture. */
struct jout {
    struct jinja_result r;
    struct jout *outer;
};

struct jrun {
    const struct jinja *t;
    const struct jinja_opts *o;
    const json_t *vars;
    struct arena arena;
    struct jval *root; /* [t->n_names]; J_ABSENT: not looked up yet */
    struct jscope *scope;
    struct jout *out;
    uint64_t steps_left;
    uint32_t depth;
    const struct jnode *at; /* where an error happened */
    enum rc rc;             /* of the failure */
    struct err *err;
};

/* Sets the run's error, unless there is one. */
void jfail_set(struct jrun *r, enum rc rc, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Each of these sets the error and is false. */
#define jfail_rc(r, rc, ...) (jfail_set((r), (rc), __VA_ARGS__), false)
#define jfail(r, ...) jfail_rc((r), RC_ARG, __VA_ARGS__)
#define jfail_undef(r, v) jfail((r), "%s", (v).why)
/* Accounts for n steps. */
NODISCARD bool jstep(struct jrun *r, uint64_t n);

/* ---- values: jinja_value.c ---- */

NODISCARD void *jalloc(struct jrun *r, size_t n); /* NULL: failed */
static inline struct jval jv_none(void)
{
    return (struct jval){.type = J_NONE};
}
static inline struct jval jv_bool(bool b)
{
    return (struct jval){.type = J_BOOL, .b = b};
}
static inline struct jval jv_int(int64_t i)
{
    return (struct jval){.type = J_INT, .i = i};
}
static inline struct jval jv_float(double f)
{
    return (struct jval){.type = J_FLOAT, .f = f};
}
static inline struct jval jv_undef(const char *why)
{
    return (struct jval){.type = J_UNDEF, .why = why};
}
/* Undefined with a formatted reason. */
bool jv_undef_fmt(struct jrun *r, struct jval *out, const char *fmt, ...) PRINTF_LIKE(3, 4);
static inline struct str jv_text(struct jval v)
{
    return (struct str){v.s->p, v.s->n};
}

/* p[n] must live as long as the run. */
NODISCARD bool jstr_borrow(struct jrun *r, const char *p, size_t n, struct jval *out);
NODISCARD bool jstr_copy(struct jrun *r, const char *p, size_t n, struct jval *out);
/* Takes b's text into the arena and releases b; fails when b failed. */
NODISCARD bool jstr_take(struct jrun *r, struct buf *b, struct jval *out);
/* A new string, which came from `from`: it is marked with from's sources. */
NODISCARD bool jstr_take_from(struct jrun *r, struct buf *b, struct jval from, struct jval *out);
/* Bytes [begin, end) of s, with their marks. */
NODISCARD bool jstr_sub(struct jrun *r, struct jval s, size_t begin, size_t end, struct jval *out);
NODISCARD bool jstr_concat(struct jrun *r, const struct jval *v, size_t n, struct jval *out);
size_t jstr_chars(struct jstr *s);
/* Byte offset of character i <= jstr_chars. */
size_t jstr_byte(struct jstr *s, size_t i);

NODISCARD bool jlist_new(struct jrun *r, size_t cap, struct jval *out);
NODISCARD bool jlist_add(struct jrun *r, struct jval list, struct jval v);
NODISCARD bool jdict_new(struct jrun *r, struct jval *out);
NODISCARD bool jdict_set(struct jrun *r, struct jval d, struct jval k, struct jval v);
/* What may be a key: anything but lists and dicts.  False: the error is set. */
NODISCARD bool jhashable(struct jrun *r, struct jval v);
/* NULL when there is none. */
struct jval *jdict_get(const struct jdict *d, struct jval k);
struct jval *jdict_get_str(const struct jdict *d, struct str k);

bool jtruth(struct jval v);
bool jequal(struct jval a, struct jval b);
/* <0, 0, >0 in *out; fails for what Python does not order. */
NODISCARD bool jcompare(struct jrun *r, struct jval a, struct jval b, const char *op, int *out);
/* str(v), as printing does. */
NODISCARD bool jv_str(struct jrun *r, struct jval v, struct jval *out);
void jv_repr(struct jval v, struct buf *b);
void jfloat_repr(double f, struct buf *b);
/* Python's name of the type, for messages. */
const char *jtype_name(struct jval v);
NODISCARD bool jv_from_json(struct jrun *r, const json_t *j, uint32_t source, struct jval *out);
struct jjson_opts {
    struct str indent; /* p NULL: one line */
    struct str item, key;
    bool sort_keys, ascii;
};
NODISCARD bool jv_to_json(struct jrun *r, struct jval v, const struct jjson_opts *o, int depth,
                          struct buf *b);
/* What a for loop or a filter sees: a list of v's items, characters or keys. */
NODISCARD bool jv_items(struct jrun *r, struct jval v, struct jlist **out);

/* ---- evaluation: jinja_eval.c ---- */

NODISCARD bool jcall(struct jrun *r, struct jval f, const struct jargs *a, struct jval *out);
NODISCARD bool jattr(struct jrun *r, struct jval v, struct str name, struct jval *out);
NODISCARD bool jitem(struct jrun *r, struct jval v, struct jval key, struct jval *out);

/* ---- library ---- */

jfn *jinja_filter(struct str name);
jfn *jinja_test(struct str name);
/* A global function or class; *out is J_ABSENT when there is none of that name. */
NODISCARD bool jinja_global(struct jrun *r, struct str name, struct jval *out);
/* A method of v; *out is J_ABSENT when there is none. */
NODISCARD bool jinja_method(struct jrun *r, struct jval v, struct str name, struct jval *out);
/* A function value. */
NODISCARD bool jfunc_new(struct jrun *r, const char *name, jfn *fn, struct jval self,
                         struct jval *out);
/* s without the white space (or the characters of chars) at its ends, str.strip. */
NODISCARD bool jstr_strip(struct jrun *r, struct jval s, struct jval chars, bool left, bool right,
                          struct jval *out);
/* str.replace; count < 0: all. */
NODISCARD bool jstr_replace(struct jrun *r, struct jval s, struct jval old, struct jval new,
                            int64_t count, struct jval *out);
/* str.splitlines. */
NODISCARD bool jstr_lines(struct jrun *r, struct jval s, bool keep_ends, struct jval *out);
enum jcase { JCASE_UPPER, JCASE_LOWER, JCASE_CAPITAL, JCASE_SWAP };
NODISCARD bool jstr_case(struct jrun *r, struct jval s, enum jcase how, struct jval *out);
/* text % args. */
NODISCARD bool jinja_format(struct jrun *r, struct jval text, struct jval args, struct jval *out);
/* Binds arguments to names[n]; those not given become J_ABSENT, of which the first n_required may not
 * be any. */
NODISCARD bool jargs_bind(struct jrun *r, const struct jargs *a, const char *func,
                          const char *const *names, size_t n, size_t n_required, struct jval *out);

#endif
