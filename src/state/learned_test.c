/* What was learned is read as it was written, or refused: whatever is damaged, cut off, newer, another model's, or killed
 * while it is written. */
#include "state/learned.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "state/io.h"

#include <cmocka.h>

enum { N = 300, HEAD = 48 };
static const uint64_t whose = 0x1234;
static char path[256], tmp[260];
static uint8_t old[N], new[2 * N];

static int set_up(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "%s/learned_test-%d", HOUSE_BINARY_DIR, (int)getpid());
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    memset(old, 'o', sizeof old);
    memset(new, 'n', sizeof new);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    io_fault_set(&(struct io_fault){0});
    mem_fail_after(0);
    unlink(tmp);
    return unlink(path) && errno != ENOENT;
}

static void must_write(const uint8_t *p, uint64_t n)
{
    struct err err;
    if (learned_write(path, whose, p, n, &err))
        fail_msg("%s", err.msg);
}

/* RC_OK only with all of want [n]. */
static enum rc read_it(const uint8_t *want, uint64_t n, struct err *err)
{
    uint8_t *got;
    uint64_t n_got;
    const enum rc rc = learned_read(path, whose, &got, &n_got, err);
    assert_true(!rc || !got);
    if (!rc) {
        assert_int_equal(n_got, n);
        assert_memory_equal(got, want, n);
    }
    mem_free(got);
    return rc;
}

static void what_was_written_is_read_and_replaced_whole(void **state)
{
    (void)state;
    uint8_t *got;
    uint64_t n;
    struct err err;
    assert_int_equal(learned_read(path, whose, &got, &n, &err), RC_OK);
    assert_true(!got && !n);
    must_write(old, N);
    assert_int_equal(read_it(old, N, &err), RC_OK);
    must_write(new, 2 * N);
    assert_int_equal(read_it(new, 2 * N, &err), RC_OK);
    must_write(new, 0);
    assert_int_equal(read_it(new, 0, &err), RC_OK);
    assert_int_equal(learned_write(path, whose, old, LEARNED_MAX_BYTES + 1, &err), RC_LIMIT);
}

static void a_file_that_is_damaged_or_cut_off_or_not_ours_is_refused(void **state)
{
    (void)state;
    struct err err;
    char *file;
    size_t n;
    must_write(old, N);
    assert_int_equal(file_read_all(path, MIB, &file, &n, &err), RC_OK);
    assert_int_equal(n, HEAD + N);
    for (size_t at = 0; at < n; at++) {
        file[at] ^= 1;
        assert_int_equal(file_write_atomically(path, file, n, &err), RC_OK);
        const enum rc rc = read_it(NULL, 0, &err);
        file[at] ^= 1;
        /* another magic is another's file, and so may a flipped version be a newer one's */
        assert_true(rc == RC_FORMAT || (rc == RC_UNSUPPORTED && at < 12));
        assert_non_null(strstr(err.msg, path));
        assert_int_equal(file_write_atomically(path, file, at, &err), RC_OK);
        assert_int_equal(read_it(NULL, 0, &err), RC_FORMAT);
    }
    file[8] = 9;
    assert_int_equal(file_write_atomically(path, file, n, &err), RC_OK);
    assert_int_equal(read_it(NULL, 0, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "has format 9; this program knows 1"));
    mem_free(file);
    assert_int_equal(learned_write(path, whose + 1, old, N, &err), RC_OK);
    assert_int_equal(read_it(NULL, 0, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "another model"));
}

static void a_write_that_fails_at_any_call_leaves_the_old_or_the_new(void **state)
{
    (void)state;
    enum rc rc = RC_IO;
    for (uint64_t at = 1; rc; at++) {
        struct err err;
        must_write(old, N);
        io_fault_set(&(struct io_fault){
            .at = at, .kind = at % 2 ? IO_FAULT_FAIL : IO_FAULT_HALF, .sys = ENOSPC});
        rc = learned_write(path, whose, new, 2 * N, &err);
        io_fault_set(&(struct io_fault){0});
        assert_true(!rc || rc == RC_IO);
        struct filemap m;
        assert_int_equal(filemap_open(&m, path, &err), RC_OK);
        const bool is_new = m.n == HEAD + 2 * N;
        filemap_close(&m);
        assert_true(is_new || rc);
        assert_int_equal(read_it(is_new ? new : old, is_new ? 2 * N : N, &err), RC_OK);
        assert_true(at < 50);
    }
}

static void a_process_killed_at_any_call_leaves_the_old_or_the_new(void **state)
{
    (void)state;
    int status = -1;
    for (uint64_t at = 1; !WIFEXITED(status); at++) {
        struct err err;
        must_write(old, N);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            io_fault_set(&(struct io_fault){.at = at, .kind = IO_FAULT_KILL});
            _exit(learned_write(path, whose, new, 2 * N, NULL) != RC_OK);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        struct filemap m;
        assert_int_equal(filemap_open(&m, path, &err), RC_OK);
        const bool is_new = m.n == HEAD + 2 * N;
        filemap_close(&m);
        assert_int_equal(read_it(is_new ? new : old, is_new ? 2 * N : N, &err), RC_OK);
        assert_true(is_new || !WIFEXITED(status));
        assert_true(at < 50);
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void without_memory_it_is_refused(void **state)
{
    (void)state;
    struct err err;
    must_write(old, N);
    mem_fail_after(1);
    assert_int_equal(read_it(NULL, 0, &err), RC_NOMEM);
    mem_fail_after(1);
    assert_int_equal(learned_write(path, whose, new, N, &err), RC_NOMEM);
    mem_fail_after(0);
    assert_int_equal(read_it(old, N, &err), RC_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_was_written_is_read_and_replaced_whole, clear),
        cmocka_unit_test_teardown(a_file_that_is_damaged_or_cut_off_or_not_ours_is_refused, clear),
        cmocka_unit_test_teardown(a_write_that_fails_at_any_call_leaves_the_old_or_the_new, clear),
        cmocka_unit_test_teardown(a_process_killed_at_any_call_leaves_the_old_or_the_new, clear),
        cmocka_unit_test_teardown(without_memory_it_is_refused, clear),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
