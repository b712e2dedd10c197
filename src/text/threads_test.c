/* One vocabulary and one template, used by several threads at once (for the tsan build). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "text/chat.h"
#include "text/detok.h"
#include "text/testing_int.h"

#include <cmocka.h>

static struct test_vocab vocab;
static struct chat_template *template;

static void *work(void *arg)
{
    json_t *const messages = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", "S",
                                       "role", "user", "content", "Gr\u00fc\u00dfe");
    const struct chat_input in = {.messages = messages, .add_generation_prompt = true};
    struct buf *const out = arg;
    for (int i = 0; messages && i < 50; i++) {
        struct chat_prompt p = {0};
        struct tokens ids = {0};
        struct detok d;
        detok_init(&d, true);
        buf_clear(out);
        if (chat_render(template, &in, &p, NULL) || chat_tokenize(vocab.v, &p, true, &ids, NULL))
            break;
        for (size_t k = 0; k < ids.n; k++)
            detok_add(&d, vocab.v, ids.v[k], out);
        tokens_release(&ids);
        chat_prompt_release(&p);
    }
    json_decref(messages);
    return NULL;
}

static void threads_share_a_vocabulary_and_a_template(void **state)
{
    (void)state;
    pthread_t threads[4];
    struct buf out[COUNT_OF(threads)] = {0};
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &out[i]), 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        assert_string_equal(buf_str(&out[i]),
                            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nGr\u00fc\u00dfe"
                            "<|im_end|>\n<|im_start|>assistant\n<think>\n");
        buf_release(&out[i]);
    }
}

int main(void)
{
    json_t *const small = test_json(HOUSE_SOURCE_DIR "/tests/golden/tokenizer/small.json");
    char *source;
    size_t n;
    struct err err;
    test_vocab_from(&vocab, small, "qwen35");
    json_decref(small);
    if (file_read_all(HOUSE_SOURCE_DIR "/tests/templates/qwen35_xml.jinja", 1 << 20, &source, &n,
                      &err) ||
        chat_template_new((struct str){source, n}, vocab.v, &template, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    mem_free(source);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_a_vocabulary_and_a_template),
    };
    const int bad = cmocka_run_group_tests(tests, NULL, NULL);
    chat_template_free(template);
    test_vocab_close(&vocab);
    return bad;
}
