/* Any reply: cut anywhere it gives the same events, in a sane order, and every call's arguments are a
 * JSON object, or not JSON at all if it was cut off.  The first byte chooses options, the second where it is cut. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/reply_testing_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static json_t *tools;

static void release(void)
{
    json_decref(tools);
}

static bool no_nul;

/* Checks a call's arguments when it ends, besides gathering. */
static void check(void *ctx, const struct reply_event *e)
{
    struct gathered *const g = ctx;
    gather(ctx, e);
    if (e->kind != REPLY_CALL_END || !no_nul)
        return;
    json_t *const args = json_loadb(buf_str(&g->args), g->args.n, JSON_ALLOW_NUL, NULL);
    CHECK(json_is_object(args));
    json_decref(args);
}

static void run(struct gathered *g, const struct reply_opts *o, struct str s, size_t step)
{
    struct reply *r;
    struct err err;
    CHECK(reply_new(o, check, g, &r, &err) == RC_OK);
    for (size_t i = 0; i < s.n; i += step)
        CHECK(reply_add(r, (struct str){s.p + i, MIN(step, s.n - i)}, &err) == RC_OK);
    CHECK((g->cut ? reply_cut(r, &err) : reply_finish(r, &err)) == RC_OK);
    reply_free(r);
    gather_end(g);
    if (g->in_call)
        CHECK(!json_loadb(buf_str(&g->args), g->args.n, JSON_ALLOW_NUL, NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!tools) {
        tools = json_pack("[{s:{s:s,s:{s:{s:{s:s},s:{s:s},s:{s:[s,s]},s:{s:s}}}}},{s:{s:s}}]",
                          "function", "name", "f", "parameters", "properties", "s", "type",
                          "string", "i", "type", "integer", "u", "type", "string", "null", "o",
                          "type", "object", "function", "name", "g");
        CHECK(tools);
        (void)atexit(release);
    }
    if (n < 2)
        return 0;
    const struct reply_opts o = {.family = (enum reply_family)(data[0] % 3),
                                 .tools = data[0] & 64 ? NULL : tools,
                                 .thinking_open = data[0] & 16,
                                 .keep_thinking = data[0] & 32,
                                 .max_calls = data[0] & 128 ? 1 : 0};
    const struct str s = {(const char *)data + 2, n - 2};
    if (!utf8_valid(s.p, s.n))
        return 0;
    no_nul = !s.n || !memchr(s.p, 0, s.n);
    struct gathered whole = {.cut = data[0] & 8}, cut = {.cut = whole.cut};
    run(&whole, &o, s, s.n ? s.n : 1);
    run(&cut, &o, s, 1 + data[1] % 16);
    CHECK(whole.b.n == cut.b.n && (!whole.b.n || !memcmp(whole.b.p, cut.b.p, whole.b.n)));
    if (!o.tools && o.keep_thinking) /* nothing is lost */
        CHECK(whole.b.n == (s.n ? s.n + 3 : 0) && (!s.n || !memcmp(whole.b.p + 2, s.p, s.n)));
    gather_release(&whole);
    gather_release(&cut);
    return 0;
}
