#include "server/volatile.h"

#include <ctype.h>
#include <string.h>

#include "base/buf.h"
#include "base/str.h"

static const struct {
    const char *name;
    unsigned kind;
} names[] = {{"billing", VOLATILE_BILLING}, {"date", VOLATILE_DATE},       {"git", VOLATILE_GIT},
             {"cwd", VOLATILE_CWD},         {"session", VOLATILE_SESSION}, {"all", ~0U}};

enum rc volatile_parse(const char *list, unsigned *kinds, struct err *err)
{
    *kinds = 0;
    for (const char *p = list; *p;) {
        const struct str word = {p, strcspn(p, ",")};
        unsigned kind = 0;
        for (size_t i = 0; i < COUNT_OF(names); i++)
            if (str_is(word, names[i].name))
                kind = names[i].kind;
        if (!kind)
            return err_set(err, RC_ARG, "'%.*s' is not of billing, date, git, cwd, session, all",
                           (int)MIN(word.n, 40), p);
        *kinds |= kind;
        p += word.n + (p[word.n] == ',');
    }
    return RC_OK;
}

/* ---- lines ---- */

/* How such a line begins, white space and a list's mark before it aside. */
static const struct {
    const char *head;
    unsigned kind;
} heads[] = {
    {"x-anthropic-billing-header:", VOLATILE_BILLING},
    {"Today's date:", VOLATILE_DATE},
    {"Today's date is", VOLATILE_DATE},
    {"Current date:", VOLATILE_DATE},
    {"Current Date:", VOLATILE_DATE},
    {"The current date is", VOLATILE_DATE},
    {"Current time:", VOLATILE_DATE},
    {"Current Time:", VOLATILE_DATE},
    {"Current time in ISO 8601 UTC format:", VOLATILE_DATE},
    {"Current date and time:", VOLATILE_DATE},
    {"<current_date>", VOLATILE_DATE},
    {"Is directory a git repo:", VOLATILE_GIT},
    {"Is a git repository:", VOLATILE_GIT},
    {"Working directory:", VOLATILE_CWD},
    {"Primary working directory:", VOLATILE_CWD},
    {"Current working directory:", VOLATILE_CWD},
    {"Current Working Directory:", VOLATILE_CWD},
    {"Workspace root folder:", VOLATILE_CWD},
    {"<cwd>", VOLATILE_CWD},
    {"Session ID:", VOLATILE_SESSION},
    {"Session id:", VOLATILE_SESSION},
    {"session_id:", VOLATILE_SESSION},
    {"Conversation ID:", VOLATILE_SESSION},
};

static const char git_block[] = "gitStatus:";
static const char git_log[] = "Recent commits:";

static struct str unindented(struct str line)
{
    while (line.n && (isspace((unsigned char)line.p[0]) || line.p[0] == '-' || line.p[0] == '*'))
        line = (struct str){line.p + 1, line.n - 1};
    return line;
}

static bool begins_volatile(struct str line, unsigned kinds)
{
    for (size_t i = 0; i < COUNT_OF(heads); i++)
        if (heads[i].kind & kinds && str_starts(line, str_of(heads[i].head)))
            return true;
    return false;
}

/* What of the text stays goes to out; whether something does not. */
static bool drop_lines(struct str text, unsigned kinds, struct buf *out)
{
    /* the block of Claude Code: from its head to the blank line behind its list of commits */
    enum { OUTSIDE, IN_STATUS, IN_LOG } git = OUTSIDE;
    bool dropped = false;
    for (size_t at = 0; at < text.n;) {
        const char *end = memchr(text.p + at, '\n', text.n - at);
        const size_t n = end ? (size_t)(end - (text.p + at)) + 1 : text.n - at;
        const struct str line = {text.p + at, n}, bare = unindented(line);
        if (git == OUTSIDE && kinds & VOLATILE_GIT && str_starts(line, str_of(git_block)))
            git = IN_STATUS;
        else if (git == IN_STATUS && str_starts(line, str_of(git_log)))
            git = IN_LOG;
        else if (git == IN_LOG && !bare.n)
            git = OUTSIDE;
        if (git != OUTSIDE || begins_volatile(bare, kinds))
            dropped = true;
        else
            buf_add(out, line.p, line.n);
        at += n;
    }
    return dropped;
}

/* ---- messages ---- */

/* *text is replaced where something has been dropped.  False when memory is out. */
static bool drop_text(unsigned kinds, const json_t *holder, const char *key, json_t **changed)
{
    const json_t *v = json_object_get(holder, key);
    const struct str text = {json_string_value(v), json_string_length(v)};
    struct buf kept = BUF_INIT;
    bool ok = true;
    *changed = NULL;
    if (text.n && drop_lines(text, kinds, &kept)) {
        *changed = json_copy((json_t *)(uintptr_t)holder);
        ok = !kept.failed &&
             !json_object_set_new(*changed, key, json_stringn(buf_str(&kept), kept.n));
    }
    buf_release(&kept);
    return ok;
}

/* The content's parts; those of which nothing is left go.  NULL in *out: nothing has changed. */
static bool drop_parts(unsigned kinds, const json_t *parts, json_t **out)
{
    json_t *list = json_array();
    bool ok = list != NULL, any = false;
    for (size_t i = 0; i < json_array_size(parts) && ok; i++) {
        json_t *part = json_array_get(parts, i), *changed;
        ok = drop_text(kinds, part, "text", &changed);
        any = any || changed;
        if (ok && !(changed && !json_string_length(json_object_get(changed, "text"))))
            ok = !json_array_append(list, changed ? changed : part);
        json_decref(changed);
    }
    *out = ok && any ? json_incref(list) : NULL;
    json_decref(list);
    return ok;
}

static bool drop_message(unsigned kinds, const json_t *m, json_t **changed)
{
    json_t *content = json_object_get(m, "content"), *parts;
    *changed = NULL;
    if (!json_is_array(content))
        return drop_text(kinds, m, "content", changed);
    if (!drop_parts(kinds, content, &parts))
        return false;
    if (!parts)
        return true;
    if (json_array_size(parts) == 1) { /* as if it had been sent as text */
        json_t *text = json_incref(json_object_get(json_array_get(parts, 0), "text"));
        json_decref(parts);
        parts = text ? text : json_string("");
    }
    *changed = json_copy((json_t *)(uintptr_t)m);
    return !json_object_set_new(*changed, "content", parts);
}

enum rc volatile_drop(unsigned kinds, json_t **messages, struct err *err)
{
    json_t *list = NULL;
    bool ok = true;
    for (size_t i = 0; kinds && i < json_array_size(*messages) && ok; i++) {
        const json_t *m = json_array_get(list ? list : *messages, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        json_t *changed;
        if (!role || (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0))
            break;
        ok = drop_message(kinds, m, &changed);
        if (changed && !list)
            list = json_copy(*messages);
        if (ok && changed)
            ok = !json_array_set(list, i, changed);
        json_decref(changed);
    }
    if (ok && list) {
        json_decref(*messages);
        *messages = list;
        list = NULL;
    }
    json_decref(list);
    return ok ? RC_OK : err_set(err, RC_NOMEM, "out of memory for the messages");
}
