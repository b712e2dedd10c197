/* Memory that runs out at any moment costs one request, with a reply that says so. */
#include "server/fake_http_int.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

#include <cmocka.h>

/* Every mem_try of one request fails in turn, and all that follow it, until it gets by without. */
static void starve(struct fixture *f, const char *path, struct str body)
{
    int status = 0;
    bool whole = false;
    for (uint64_t n = 1; !whole && n < 100000; n++) {
        mem_fail_after(n);
        const bool answered = post(f, path, body, &status);
        void *p = mem_try(1); /* there when the n-th is still to come */
        whole = p != NULL;
        mem_free(p);
        mem_fail_after(0);
        assert_true(answered);
        assert_int_equal(atomic_load(&f->engine.n_alive), 0);
    }
    assert_true(whole);
}

/* The corpus of request_fuzz: its first byte chooses the path. */
static void a_request_without_memory_is_answered_and_leaves_nothing(void **state)
{
    static const char dir[] = HOUSE_SOURCE_DIR "/tests/corpus/request_fuzz";
    struct fixture f = {0};
    unsigned n = 0;
    (void)state;
    set_up(&f);
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[1024], *data;
        size_t size;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        assert_int_equal(file_read_all(path, MIB, &data, &size, NULL), RC_OK);
        starve(&f, post_paths[(unsigned char)data[0] % COUNT_OF(post_paths)],
               (struct str){data + 1, size - 1});
        mem_free(data);
        n++;
    }
    closedir(d);
    assert_true(n >= 10);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_without_memory_is_answered_and_leaves_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
