#include "cli/opts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"

static const struct opt *opt_at(const struct opts *o, size_t i)
{
    return i < o->n ? &o->table[i] : i - o->n < o->n_more ? &o->more[i - o->n] : NULL;
}

/* ---- names ---- */

/* Walks opt.names: false at the end.  *name is without the '!'. */
static bool next_name(const char **at, struct str *name, bool *negative)
{
    const char *p = *at + strspn(*at, " ");
    if (!*p)
        return false;
    *negative = *p == '!';
    p += *negative;
    *name = (struct str){p, strcspn(p, " ")};
    *at = p + name->n;
    return true;
}

/* As llama-server does, '_' in a long name stands for '-'. */
static bool same_name(struct str name, struct str word)
{
    if (name.n != word.n)
        return false;
    const bool is_long = name.n > 2 && name.p[0] == '-' && name.p[1] == '-';
    for (size_t i = 0; i < name.n; i++) {
        const char c = is_long && word.p[i] == '_' ? '-' : word.p[i];
        if (c != name.p[i])
            return false;
    }
    return true;
}

static const struct opt *find(const struct opts *o, struct str word, bool *negative)
{
    const struct opt *p;
    for (size_t i = 0; (p = opt_at(o, i)); i++) {
        const char *at = p->names;
        if (p->kind == OPT_GROUP)
            continue;
        for (struct str name; next_name(&at, &name, negative);)
            if (same_name(name, word))
                return p;
    }
    return NULL;
}

/* ---- the nearest name ---- */

enum { MAX_NAME = 48 };

/* Levenshtein; names longer than MAX_NAME are far from everything. */
static unsigned distance(struct str a, struct str b)
{
    unsigned row[MAX_NAME + 1];
    if (a.n > MAX_NAME || b.n > MAX_NAME)
        return UINT32_MAX;
    for (unsigned j = 0; j <= b.n; j++)
        row[j] = j;
    for (unsigned i = 1; i <= a.n; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= b.n; j++) {
            const unsigned swapped = diagonal + (a.p[i - 1] != b.p[j - 1]);
            diagonal = row[j];
            row[j] = MIN(swapped, MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[b.n];
}

struct nearest {
    struct str word, best;
    unsigned at;
};

static void nearest_try(struct nearest *n, struct str name)
{
    const unsigned d = distance(n->word, name);
    /* more than a third of the letters wrong is no slip of the fingers */
    if (d < n->at && (size_t)3 * d <= MAX(n->word.n, name.n) + 1) {
        n->at = d;
        n->best = name;
    }
}

const char *opts_nearest(const char *word, const char *const *names, size_t n)
{
    struct nearest near = {.word = str_of(word), .at = UINT32_MAX};
    for (size_t i = 0; i < n; i++)
        nearest_try(&near, str_of(names[i]));
    return near.best.p;
}

static struct str nearest_option(const struct opts *o, struct str word)
{
    struct nearest near = {.word = word, .at = UINT32_MAX};
    const struct opt *p;
    for (size_t i = 0; (p = opt_at(o, i)); i++) {
        const char *at = p->names;
        bool negative;
        if (p->kind == OPT_GROUP)
            continue;
        for (struct str name; next_name(&at, &name, &negative);)
            nearest_try(&near, name);
    }
    return near.best;
}

/* ---- values ---- */

static bool in_range(const struct opt *p, double v)
{
    return (p->min == 0 && p->max == 0) || (v >= p->min && v <= p->max);
}

static bool set_integer(const struct opt *p, const char *value, int64_t min, int64_t max)
{
    int64_t v;
    if (!str_to_i64(value, &v) || v < min || v > max || !in_range(p, (double)v))
        return false;
    if (p->kind == OPT_I32)
        *(int32_t *)p->to = (int32_t)v;
    else if (p->kind == OPT_U32)
        *(uint32_t *)p->to = (uint32_t)v;
    else
        *(int64_t *)p->to = v;
    return true;
}

static bool set_real(const struct opt *p, const char *value)
{
    double v;
    if (!str_to_f64(value, &v) || !in_range(p, v))
        return false;
    if (p->kind == OPT_F32)
        *(float *)p->to = (float)v;
    else
        *(double *)p->to = v;
    return true;
}

static bool set_value(const struct opt *p, const char *value)
{
    switch (p->kind) {
    case OPT_I32:
        return set_integer(p, value, INT32_MIN, INT32_MAX);
    case OPT_U32:
        return set_integer(p, value, 0, UINT32_MAX);
    case OPT_I64:
        return set_integer(p, value, INT64_MIN, INT64_MAX);
    case OPT_F32:
    case OPT_F64:
        return set_real(p, value);
    case OPT_BYTES:
        return str_to_bytes(value, p->to);
    case OPT_STR:
        *(const char **)p->to = value;
        return true;
    default:
        return true;
    }
}

/* Of an option that decides nothing. */
static bool looks_right(const struct opt *p, const char *value)
{
    int64_t i;
    double x;
    if (p->arg && !strcmp(p->arg, "N"))
        return str_to_i64(value, &i);
    return !p->arg || strcmp(p->arg, "X") != 0 || str_to_f64(value, &x);
}

static void say_bad_value(const struct opts *o, const struct opt *p, const char *name, size_t n,
                          const char *value, FILE *out)
{
    static const char *const what[] = {
        [OPT_I32] = "a whole number", [OPT_U32] = "a whole number",
        [OPT_I64] = "a whole number", [OPT_F32] = "a number",
        [OPT_F64] = "a number",       [OPT_BYTES] = "a size such as 512M or 1.5G",
        [OPT_IGNORED] = "a number",
    };
    fprintf(out, "holdfast %s: %.*s: '%s' is not %s", o->command, (int)n, name, value,
            what[p->kind]);
    if (p->min != 0 || p->max != 0)
        fprintf(out, " from %.10g to %.10g", p->min, p->max);
    else if (p->kind == OPT_U32)
        fprintf(out, " of 0 or more");
    fputc('\n', out);
}

/* ---- environment ---- */

static bool truth(const char *value, bool *out)
{
    static const char *const yes[] = {"1", "true", "on", "enabled", "yes"};
    static const char *const no[] = {"0", "false", "off", "disabled", "no"};
    for (size_t i = 0; i < COUNT_OF(yes); i++) {
        if (!strcasecmp(value, yes[i]) || !strcasecmp(value, no[i])) {
            *out = !strcasecmp(value, yes[i]);
            return true;
        }
    }
    return false;
}

static bool from_environment(const struct opts *o, FILE *out)
{
    const struct opt *p;
    for (size_t i = 0; (p = opt_at(o, i)); i++) {
        const char *value = p->env && p->to ? getenv(p->env) : NULL;
        if (!value || !*value)
            continue;
        if (p->kind == OPT_FLAG) {
            if (!truth(value, p->to)) {
                fprintf(out, "holdfast %s: %s: '%s' is neither true nor false\n", o->command,
                        p->env, value);
                return false;
            }
        } else if (!set_value(p, value)) {
            say_bad_value(o, p, p->env, strlen(p->env), value, out);
            return false;
        }
        if (p->given)
            *p->given = true;
    }
    return true;
}

/* ---- help ---- */

static void print_help(const struct opts *o)
{
    enum { COLUMN = 34 };
    printf("usage: holdfast %s [options]%s%s\n\n%s\n", o->command, o->operands_help ? " " : "",
           o->operands_help ? o->operands_help : "", o->intro);
    bool heading = false;
    const struct opt *p;
    for (size_t i = 0; (p = opt_at(o, i)); i++) {
        if (p->kind == OPT_GROUP) {
            printf("\n%s:\n", p->help);
            heading = true;
            continue;
        }
        if (!heading) {
            printf("\noptions:\n");
            heading = true;
        }
        char left[128] = "";
        size_t used = 0;
        const char *at = p->names;
        bool negative;
        for (struct str name; next_name(&at, &name, &negative) && used < sizeof left;)
            used += (size_t)snprintf(left + used, sizeof left - used, "%s%.*s", used ? ", " : "",
                                     (int)name.n, name.p);
        if (p->arg && used < sizeof left)
            snprintf(left + used, sizeof left - used, " %s", p->arg);
        printf("  %-*s", COLUMN - 2, left);
        if (strlen(left) > COLUMN - 4)
            printf("\n%*s", COLUMN, "");
        if (p->kind == OPT_IGNORED)
            printf("accepted, decides nothing here: ");
        if (p->kind == OPT_REFUSED)
            printf("not supported: ");
        printf("%s", p->help);
        if (p->env)
            printf(" (env: %s)", p->env);
        putchar('\n');
    }
    printf("%s  %-*s%s\n", heading ? "" : "\noptions:\n", COLUMN - 2, "-h, --help", "print this");
    if (o->epilog)
        printf("\n%s", o->epilog);
}

/* ---- the command line ---- */

struct cursor {
    int i, argc;
    char *const *argv;
};

static bool apply(const struct opts *o, struct cursor *c, FILE *out)
{
    const char *word = c->argv[c->i];
    const char *eq = word[1] == '-' ? strchr(word, '=') : NULL;
    const struct str name = {word, eq ? (size_t)(eq - word) : strlen(word)};
    const char *value = eq ? eq + 1 : NULL;
    bool negative = false;
    const struct opt *p = find(o, name, &negative);
    if (!p) {
        const struct str near = nearest_option(o, name);
        fprintf(out, "holdfast %s: unknown option %.*s", o->command, (int)name.n, name.p);
        if (near.n)
            fprintf(out, "; did you mean %.*s?", (int)near.n, near.p);
        fprintf(out, "\n(holdfast %s --help lists them)\n", o->command);
        return false;
    }
    if (p->arg && !value) {
        const bool more = c->i + 1 < c->argc;
        const bool optional = p->arg[0] == '[';
        if (more && !(optional && c->argv[c->i + 1][0] == '-')) {
            value = c->argv[++c->i];
        } else if (!optional) {
            fprintf(out, "holdfast %s: %.*s wants a value: %s\n", o->command, (int)name.n, name.p,
                    p->arg);
            return false;
        }
    } else if (!p->arg && value) {
        fprintf(out, "holdfast %s: %.*s takes no value\n", o->command, (int)name.n, name.p);
        return false;
    }
    switch (p->kind) {
    case OPT_REFUSED:
        fprintf(out, "holdfast %s: %.*s is not supported: %s\n", o->command, (int)name.n, name.p,
                p->help);
        return false;
    case OPT_IGNORED:
        if (!looks_right(p, value)) {
            say_bad_value(o, p, name.p, name.n, value, out);
            return false;
        }
        fprintf(out, "note: %.*s decides nothing here: %s\n", (int)name.n, name.p, p->help);
        break;
    case OPT_FLAG:
        *(bool *)p->to = !negative;
        break;
    default:
        if (!set_value(p, value)) {
            say_bad_value(o, p, name.p, name.n, value, out);
            return false;
        }
    }
    if (p->given)
        *p->given = true;
    return true;
}

static bool is_help(const char *word)
{
    return !strcmp(word, "-h") || !strcmp(word, "--help") || !strcmp(word, "--usage");
}

enum opts_result opts_parse(const struct opts *o, int argc, char *const *argv, FILE *out)
{
    size_t n_operands = 0;
    bool only_operands = false;
    if (!from_environment(o, out))
        return OPTS_ERROR;
    for (struct cursor c = {1, argc, argv}; c.i < argc; c.i++) {
        const char *word = argv[c.i];
        if (!only_operands && is_help(word)) {
            print_help(o);
            return OPTS_HELP;
        }
        if (!only_operands && !strcmp(word, "--")) {
            only_operands = true;
        } else if (!only_operands && word[0] == '-' && word[1]) {
            if (!apply(o, &c, out))
                return OPTS_ERROR;
        } else if (n_operands < o->max_operands) {
            o->operands[n_operands++] = word;
        } else {
            fprintf(out, "holdfast %s: what is '%s' for?\n(holdfast %s --help)\n", o->command, word,
                    o->command);
            return OPTS_ERROR;
        }
    }
    if (n_operands < o->min_operands) {
        fprintf(out, "holdfast %s: wants %s\n(holdfast %s --help)\n", o->command,
                o->operands_help ? o->operands_help : "more words", o->command);
        return OPTS_ERROR;
    }
    if (o->n_operands)
        *o->n_operands = n_operands;
    return OPTS_OK;
}
