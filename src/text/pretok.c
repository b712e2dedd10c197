/* pretok.c - the expressions, alternatives tried from left to right at each position:
 *
 *   gpt-2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   the rest   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?W+|\p{N}{1,max}| ?[^\sW\p{N}]+[\r\n]*|
 *              \s*[\r\n]+|\s+(?!\S)|\s+
 *
 * W, a word's characters, is [\p{L}\p{M}] for qwen35, else \p{L}.  Case folding is ASCII's alone: the
 * long s U+017F begins no contraction.  The end of the text is the end of the fragment between two
 * special tokens.
 */
#include "text/pretok.h"

#include "text/unicode.h"

static const struct pretok pretoks[] = {
    {.name = "qwen35", .marks = true, .max_digits = 1},
    {.name = "qwen2", .max_digits = 1},
    {.name = "llama-bpe", .max_digits = 3, .ignore_merges = true, .add_bos = true},
    {.name = "gpt-2", .gpt2 = true},
};

const struct pretok *pretok_find(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(pretoks); i++)
        if (str_is(name, pretoks[i].name))
            return &pretoks[i];
    return NULL;
}

enum kind { NONE, WORD, NUMBER, SPACE, OTHER }; /* NONE: past the end */

struct scan {
    const struct pretok *p;
    struct str text;
};

/* What stands at i, and where the next code point begins. */
static enum kind kind_at(const struct scan *s, size_t i, size_t *next)
{
    *next = i;
    if (i >= s->text.n)
        return NONE;
    uint32_t cp;
    *next = i + unicode_decode(s->text.p + i, s->text.n - i, &cp);
    switch (unicode_class(cp)) {
    case UNICODE_LETTER:
        return WORD;
    case UNICODE_MARK:
        return s->p->marks ? WORD : OTHER;
    case UNICODE_NUMBER:
        return NUMBER;
    case UNICODE_SPACE:
        return SPACE;
    case UNICODE_OTHER:
        break;
    }
    return OTHER;
}

/* The end of the run of kind k from i, of at most max code points. */
static size_t run_end(const struct scan *s, size_t i, enum kind k, size_t max)
{
    size_t next = i;
    while (max-- && kind_at(s, i, &next) == k)
        i = next;
    return i;
}

static bool is_newline(char c)
{
    return c == '\r' || c == '\n';
}

/* Length of the contraction at i ('s, 're, ...), or 0. */
static size_t contraction(const struct scan *s, size_t i)
{
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (s->text.p[i] != '\'')
        return 0;
    for (size_t e = 0; e < COUNT_OF(ends); e++) {
        size_t k = 0;
        while (ends[e][k] && i + 1 + k < s->text.n) {
            const char c = s->text.p[i + 1 + k];
            const char low = !s->p->gpt2 && c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
            if (low != ends[e][k])
                break;
            k++;
        }
        if (!ends[e][k])
            return 1 + k;
    }
    return 0;
}

/* \s+(?!\S)|\s+ : one white space character is left for the next piece, unless the text ends here or
 * it is the only one.  end is the end of the run from i. */
static size_t spaces(const struct scan *s, size_t i, size_t end)
{
    if (end == s->text.n)
        return end;
    size_t last = i, next = i;
    for (size_t j = i; j < end; j = next) {
        last = j;
        (void)kind_at(s, j, &next);
    }
    return last > i ? last : end;
}

static size_t next_gpt2(const struct scan *s, size_t i)
{
    const size_t c = contraction(s, i);
    if (c)
        return i + c;
    const size_t j = s->text.p[i] == ' ' ? i + 1 : i;
    size_t next;
    const enum kind k = kind_at(s, j, &next);
    if (k == WORD || k == NUMBER || k == OTHER)
        return run_end(s, j, k, SIZE_MAX);
    return spaces(s, i, run_end(s, i, SPACE, SIZE_MAX));
}

static size_t next_rest(const struct scan *s, size_t i)
{
    const size_t c = contraction(s, i);
    if (c)
        return i + c;

    size_t second, after;
    const enum kind k = kind_at(s, i, &second);
    if (k == WORD)
        return run_end(s, i, WORD, SIZE_MAX);
    if (k == NUMBER)
        return run_end(s, i, NUMBER, s->p->max_digits);
    if (!is_newline(s->text.p[i]) && kind_at(s, second, &after) == WORD)
        return run_end(s, second, WORD, SIZE_MAX);

    size_t j = s->text.p[i] == ' ' ? i + 1 : i;
    if (kind_at(s, j, &after) == OTHER) {
        j = run_end(s, j, OTHER, SIZE_MAX);
        while (j < s->text.n && is_newline(s->text.p[j]))
            j++;
        return j;
    }

    const size_t end = run_end(s, i, SPACE, SIZE_MAX);
    for (j = end; j > i; j--)
        if (is_newline(s->text.p[j - 1])) /* \s*[\r\n]+ */
            return j;
    return spaces(s, i, end);
}

size_t pretok_next(const struct pretok *p, struct str text, size_t at)
{
    const struct scan s = {p, text};
    return p->gpt2 ? next_gpt2(&s, at) : next_rest(&s, at);
}
