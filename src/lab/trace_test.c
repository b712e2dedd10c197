#include "lab/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const char head[] = "{\"holdfast_trace\":1,\"name\":\"t\",\"source\":\"by hand\"}\n";

static enum rc open_text(const char *text, struct trace **t, struct err *err)
{
    char path[] = "/tmp/trace_test.XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    const enum rc rc = trace_open(path, t, err);
    unlink(path);
    return rc;
}

static void segments_become_tokens_that_are_equal_where_stream_and_index_are(void **state)
{
    (void)state;
    struct trace *t;
    struct err err;
    char text[2000];
    snprintf(
        text, sizeof text, "%s%s%s%s", head,
        "{\"i\":0,\"t\":0,\"s\":\"A\",\"p\":[[1,10,\"s\"],[2,5,\"u\"],[3,4,\"g\"]],\"g\":[4,6]}\n",
        "{\"i\":1,\"t\":1.5,\"b\":[0,4],\"p\":[[1,3],[9,1]]}\n\n",
        "{\"i\":2,\"t\":2,\"s\":\"A\",\"b\":[1,5],\"p\":[[2,6,\"u\"]],\"g\":[4,2]}\n");
    assert_int_equal(open_text(text, &t, &err), RC_OK);
    assert_string_equal(t->name, "t");
    assert_int_equal(t->n, 3);
    assert_int_equal(t->prompt_tokens, 19 + 29 + 34);
    assert_int_equal(t->n_streams, 2);
    assert_int_equal(t->reqs[0].stream, t->reqs[2].stream);

    struct trace_tokens a = {0}, b = {0};
    assert_int_equal(trace_expand(t, 0, 0, &a, NULL), RC_OK);
    assert_int_equal(a.n_prompt, 19);
    assert_int_equal(a.n_gen, 6);
    assert_int_equal(a.n_hints, 3);
    assert_int_equal(a.hints[0].pos, 0);
    assert_int_equal(a.hints[1].pos, 10);
    assert_int_equal(a.hints[1].role, 'u');
    assert_int_equal(a.hints[2].pos, 15);
    assert_int_equal(a.hints[2].role, 'g');
    assert_int_equal(trace_expand(t, 1, 0, &b, NULL), RC_OK);
    assert_int_equal(b.n_prompt, 29);
    assert_int_equal(b.n_gen, 0);
    assert_memory_equal(a.seq, b.seq, 25 * sizeof *a.seq);
    assert_memory_equal(b.seq + 25, a.seq, 3 * sizeof *a.seq); /* stream 1 again, from its start */
    assert_int_equal(trace_expand(t, 2, 0, &b, NULL), RC_OK);
    assert_int_equal(b.n_prompt, 34);
    assert_memory_equal(b.seq + 28, a.seq + 10, 5 * sizeof *a.seq); /* stream 2, longer */
    assert_memory_equal(b.seq + 34, a.seq + 19, 2 * sizeof *a.seq);
    for (uint32_t i = 0; i < 34; i++)
        for (uint32_t k = 0; k < i;
             k++) /* different pairs, different tokens, but for the repeats */
            if ((i < 25 || i >= 34) && k < 25)
                assert_int_not_equal(b.seq[i], b.seq[k]);
    /* into a vocabulary */
    assert_int_equal(trace_expand(t, 2, 100, &b, NULL), RC_OK);
    for (uint32_t i = 0; i < 36; i++)
        assert_in_range(b.seq[i], 0, 99);
    trace_tokens_release(&a);
    trace_tokens_release(&b);
    trace_close(t);
}

static void what_is_wrong_is_named_with_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
        enum rc rc;
    } bad[] = {
        {"", "empty", RC_FORMAT},
        {"{}\n", "line 1: no holdfast_trace header", RC_FORMAT},
        {"{\"holdfast_trace\":2}\n", "line 1: trace format 2", RC_UNSUPPORTED},
        {"{\"holdfast_trace\":\"1\"}\n", "line 1: holdfast_trace", RC_FORMAT},
        {"H{\"i\":0,\"t\":0,\"p\":[[1,2]]\n", "line 2:", RC_FORMAT},
        {"H[1]\n", "line 2: not a JSON object", RC_FORMAT},
        {"H{\"i\":1,\"t\":0,\"p\":[[1,2]]}\n", "line 2: i: is 1", RC_FORMAT},
        {"H{\"i\":0,\"t\":-1,\"p\":[[1,2]]}\n", "line 2: t", RC_FORMAT},
        {"H{\"i\":0,\"t\":0}\n", "line 2: p:", RC_FORMAT},
        {"H{\"i\":0,\"t\":0,\"p\":[]}\n", "line 2: the prompt has no tokens", RC_FORMAT},
        {"H{\"i\":0,\"t\":0,\"p\":[[1]]}\n", "line 2: a segment is", RC_FORMAT},
        {"H{\"i\":0,\"t\":0,\"p\":[[1,2,3]]}\n", "line 2: a segment's kind", RC_FORMAT},
        {"H{\"i\":0,\"t\":0,\"p\":[[1,2,\"x\"]]}\n", "line 2: a segment's kind", RC_FORMAT},
        {"H{\"i\":0,\"t\":0,\"p\":[[1,-2]]}\n", "line 2: a segment of -2", RC_LIMIT},
        {"H{\"i\":0,\"t\":0,\"p\":[[1,9999999999]]}\n", "line 2: a segment of 9999999999",
         RC_LIMIT},
        {"H{\"i\":0,\"t\":0,\"p\":[[1,60000000],[2,60000000]]}\n", "too large", RC_LIMIT},
        {"H{\"i\":0,\"t\":0,\"b\":[0,1],\"p\":[[1,2]]}\n", "b: names request 0", RC_FORMAT},
        {"H{\"i\":0,\"t\":0,\"p\":[[1,2]]}\n{\"i\":1,\"t\":0,\"b\":[0,2],\"p\":[]}\n",
         "line 3: b: takes 2 segments of request 0, which has 1", RC_FORMAT},
        {"H{\"i\":0,\"t\":0,\"b\":7,\"p\":[[1,2]]}\n", "line 2: b:", RC_FORMAT},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char text[1000];
        const bool with_head = bad[i].text[0] == 'H';
        snprintf(text, sizeof text, "%s%s", with_head ? head : "", bad[i].text + with_head);
        struct trace *t;
        struct err err = {0};
        assert_int_equal(open_text(text, &t, &err), bad[i].rc);
        if (!strstr(err.msg, bad[i].says))
            fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
    }
    struct trace *t;
    struct err err;
    assert_int_equal(trace_open("/nowhere/at/all", &t, &err), RC_IO);
    assert_non_null(strstr(err.msg, "/nowhere/at/all"));
}

static void a_file_cut_at_any_byte_opens_or_says_why(void **state)
{
    (void)state;
    char text[1000];
    const int n = snprintf(text, sizeof text, "%s%s", head,
                           "{\"i\":0,\"t\":0,\"p\":[[1,10,\"s\"],[2,5]],\"g\":[4,6]}\n"
                           "{\"i\":1,\"t\":1,\"b\":[0,3],\"p\":[[3,3]]}\n");
    for (int cut = n - 1; cut >= 0; cut--) {
        text[cut] = 0;
        struct trace *t = NULL;
        struct err err = {0};
        if (open_text(text, &t, &err))
            assert_true(err.msg[0]);
        else
            trace_close(t);
    }
}

static void memory_that_runs_out_is_an_error(void **state)
{
    (void)state;
    char text[1000];
    snprintf(text, sizeof text, "%s%s", head,
             "{\"i\":0,\"t\":0,\"p\":[[1,10,\"s\"],[2,5]],\"g\":[4,6]}\n");
    for (uint64_t k = 1; k < 40; k++) {
        struct trace *t = NULL;
        struct trace_tokens x = {0};
        struct err err;
        mem_fail_after(k);
        enum rc rc = open_text(text, &t, &err);
        if (!rc)
            rc = trace_expand(t, 0, 0, &x, &err);
        mem_fail_after(0);
        assert_true(rc == RC_OK || rc == RC_NOMEM || rc == RC_FORMAT);
        trace_tokens_release(&x);
        trace_close(t);
    }
}

/* Everything a prompt shares with another one it shares when both are shorter. */
static void a_shrunk_trace_keeps_its_overlaps(void **state)
{
    (void)state;
    char text[1000];
    snprintf(text, sizeof text, "%s%s", head,
             "{\"i\":0,\"t\":0,\"p\":[[1,1000,\"s\"],[2,5]],\"g\":[4,60]}\n"
             "{\"i\":1,\"t\":1,\"b\":[0,3],\"p\":[[3,300]]}\n"
             "{\"i\":2,\"t\":1,\"p\":[[1,400],[9,100]]}\n");
    struct trace *t;
    struct err err;
    struct trace_tokens x[3] = {0};
    assert_int_equal(open_text(text, &t, &err), RC_OK);
    assert_int_equal(trace_shrink(t, 0, .1, &err), RC_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(trace_expand(t, i, 0, &x[i], &err), RC_OK);
    assert_int_equal(x[0].n_prompt, 101); /* of 5 tokens one is left */
    assert_int_equal(x[0].n_gen, 6);
    assert_int_equal(x[1].n_prompt, 137);
    assert_memory_equal(x[1].seq, x[0].seq, 107 * sizeof(token));
    assert_memory_equal(x[2].seq, x[0].seq, 40 * sizeof(token));
    assert_true(x[2].seq[40] != x[0].seq[40]);
    assert_int_equal(t->prompt_tokens, 101 + 137 + 50);
    assert_int_equal(trace_shrink(t, 1, 1, &err), RC_OK);
    assert_int_equal(t->n, 1);
    assert_int_equal(t->prompt_tokens, 101);
    assert_int_equal(trace_shrink(t, 0, 1e9, &err), RC_LIMIT);
    for (uint32_t i = 0; i < 3; i++)
        trace_tokens_release(&x[i]);
    trace_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_become_tokens_that_are_equal_where_stream_and_index_are),
        cmocka_unit_test(what_is_wrong_is_named_with_its_line),
        cmocka_unit_test(a_file_cut_at_any_byte_opens_or_says_why),
        cmocka_unit_test(a_shrunk_trace_keeps_its_overlaps),
        cmocka_unit_test(memory_that_runs_out_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
