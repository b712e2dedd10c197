/* Saved state: what is read back has the bits that were written, or is refused; whatever happens to the file, and
 * whenever writing it stops. */
#include "state/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "state/io.h"

#include <cmocka.h>

static const struct shape tiny = {.n_attn = 1,
                                  .n_delta = 2,
                                  .n_kv_heads = 1,
                                  .head_dim = 8,
                                  .kv_type = KV_F16,
                                  .conv_taps = 4,
                                  .conv_channels = 10,
                                  .n_v_heads = 2,
                                  .state_dim = 4,
                                  .fingerprint = 0x1234};
enum { POS = 200, FROM = 64, N_PAGES = 3 };

static struct {
    char dir[256], path[280], tmp[300];
    token seq[POS];
    uint8_t *page[N_PAGES], *got[N_PAGES];
    uint8_t *snap, *got_snap;
    struct segment_head head;
} w;

static void fill(uint8_t *p, uint64_t n, struct rng *rng)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = (uint8_t)rng_u64(rng);
}

/* What is proved does not need the disk to be real, and syncing a busy one takes minutes. */
static const char memory[] = "/dev/shm";

static int set_up(void **state)
{
    (void)state;
    const uint64_t page = shape_page_bytes(&tiny), snap = shape_snap_bytes(&tiny);
    struct rng rng = {7};
    snprintf(w.dir, sizeof w.dir, "%s/segment_test-XXXXXX",
             access(memory, W_OK) ? HOUSE_BINARY_DIR : memory);
    if (!mkdtemp(w.dir))
        return 1;
    snprintf(w.path, sizeof w.path, "%s/a.seg", w.dir);
    snprintf(w.tmp, sizeof w.tmp, "%s.tmp", w.path);
    for (int i = 0; i < POS; i++)
        w.seq[i] = (token)rng_below(&rng, 1000);
    for (int j = 0; j < N_PAGES; j++) {
        w.page[j] = mem_alloc(page);
        w.got[j] = mem_alloc(page);
        fill(w.page[j], page, &rng);
    }
    w.snap = mem_alloc(snap);
    w.got_snap = mem_alloc(snap);
    fill(w.snap, snap, &rng);
    w.head = (struct segment_head){.id = 9,
                                   .parent = 4,
                                   .from = FROM,
                                   .pos = POS,
                                   .kind = 3,
                                   .hits = 2,
                                   .family = 77,
                                   .used_ns = 1234567890123,
                                   .made_ns = 1234567890000};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int j = 0; j < N_PAGES; j++) {
        mem_free(w.page[j]);
        mem_free(w.got[j]);
    }
    mem_free(w.snap);
    mem_free(w.got_snap);
    unlink(w.path);
    unlink(w.tmp);
    return rmdir(w.dir);
}

static enum rc save(struct err *err)
{
    return segment_write(w.path, &tiny, "ref", &w.head, w.seq, (const void *const *)w.page, w.snap,
                         err);
}

static void must(enum rc rc, const struct err *err)
{
    if (rc)
        fail_msg("%s: %s", rc_name(rc), err->msg);
}

/* Opens and reads all there is, and holds it against what was written. */
static enum rc load(struct err *err)
{
    struct segment *g;
    enum rc rc = segment_open(w.path, &tiny, "ref", &g, err);
    if (rc)
        return rc;
    const struct segment_head *h = segment_head(g);
    assert_true(h->id == 9 && h->parent == 4 && h->from == FROM && h->pos == POS && h->kind == 3);
    assert_true(h->hits == 2 && h->family == 77 && h->used_ns == 1234567890123 &&
                h->made_ns == 1234567890000);
    assert_true(h->from_hash == segment_hash(w.seq, FROM));
    assert_true(h->path_hash == segment_hash(w.seq, POS));
    assert_memory_equal(segment_tokens(g), w.seq + FROM, (POS - FROM) * sizeof(token));
    const uint32_t n = segment_pages_left(g);
    rc = segment_read(g, 0, n, (void *const *)w.got, segment_has_snap(g) ? w.got_snap : NULL, err);
    if (!rc) {
        for (uint32_t j = 0; j < n; j++)
            assert_memory_equal(w.got[j], w.page[j], shape_page_bytes(&tiny));
        if (segment_has_snap(g))
            assert_memory_equal(w.got_snap, w.snap, shape_snap_bytes(&tiny));
    }
    segment_close(g);
    return rc;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void what_is_read_back_is_what_was_written(void **state)
{
    (void)state;
    struct err err;
    must(save(&err), &err);
    assert_false(exists(w.tmp));
    must(load(&err), &err);
    struct stat st;
    assert_int_equal(stat(w.path, &st), 0);
    assert_int_equal(st.st_size, segment_whole_bytes(&tiny, &w.head));
}

static void one_without_pages_of_its_own_is_a_snapshot(void **state)
{
    (void)state;
    struct err err;
    struct segment *g;
    struct segment_head h = w.head;
    h.from = h.pos;
    must(segment_write(w.path, &tiny, "ref", &h, w.seq, NULL, w.snap, &err), &err);
    must(segment_open(w.path, &tiny, "ref", &g, &err), &err);
    assert_int_equal(segment_pages_left(g), 0);
    must(segment_read(g, 0, 0, NULL, w.got_snap, &err), &err);
    assert_memory_equal(w.got_snap, w.snap, shape_snap_bytes(&tiny));
    segment_close(g);
}

static void shortening_takes_the_snapshot_then_pages(void **state)
{
    (void)state;
    struct err err;
    must(save(&err), &err);
    for (uint32_t n = N_PAGES + 1; n-- > 0;) {
        struct segment *g;
        must(segment_shorten(w.path, &tiny, &w.head, n, &err), &err);
        must(load(&err), &err);
        must(segment_open(w.path, &tiny, "ref", &g, &err), &err);
        assert_int_equal(segment_pages_left(g), n);
        assert_false(segment_has_snap(g));
        assert_int_equal(segment_read(g, 0, n, (void *const *)w.got, w.got_snap, &err), RC_FORMAT);
        assert_int_equal(segment_read(g, 0, n + 1, (void *const *)w.got, NULL, &err), RC_FORMAT);
        segment_close(g);
    }
}

static char *bytes_of_file(size_t *n)
{
    char *all;
    struct err err;
    must(file_read_all(w.path, MIB, &all, n, &err), &err);
    return all;
}

static void put_file(const void *p, size_t n)
{
    struct err err;
    must(file_write_atomically(w.path, p, n, &err), &err);
}

static void a_flipped_bit_anywhere_is_noticed(void **state)
{
    (void)state;
    struct err err;
    must(save(&err), &err);
    size_t n;
    char *all = bytes_of_file(&n);
    const int fd = open(w.path, O_WRONLY);
    assert_true(fd >= 0);
    for (size_t i = 0; i < n; i += i < 300 ? 1 : 61) {
        const char flipped = (char)(all[i] ^ 1 << i % 8);
        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)i), 1);
        const enum rc rc = load(&err);
        if (i < 8)
            assert_int_equal(rc, RC_UNSUPPORTED); /* not one of ours */
        else
            assert_true(rc == RC_FORMAT || (i < 12 && rc == RC_UNSUPPORTED)); /* newer */
        assert_int_equal(pwrite(fd, &all[i], 1, (off_t)i), 1);
    }
    must(load(&err), &err);
    close(fd);
    mem_free(all);
}

static void a_file_of_any_other_length_is_refused(void **state)
{
    (void)state;
    struct err err;
    must(save(&err), &err);
    size_t n;
    char *all = bytes_of_file(&n);
    const uint64_t full = segment_whole_bytes(&tiny, &w.head);
    for (size_t m = 0; m < n; m += m < 300 ? 1 : 37) {
        bool whole_pages = false;
        for (uint32_t j = 0; j <= N_PAGES; j++)
            whole_pages |= m == segment_bytes(&tiny, &w.head, j);
        put_file(all, m);
        assert_int_equal(load(&err), whole_pages ? RC_OK : RC_FORMAT);
    }
    assert_int_equal(n, full);
    char *more = mem_alloc(n + 1);
    memcpy(more, all, n);
    more[n] = 0;
    put_file(more, n + 1);
    assert_int_equal(load(&err), RC_FORMAT);
    mem_free(more);
    mem_free(all);
}

static void state_of_another_model_or_arithmetic_is_stale(void **state)
{
    (void)state;
    struct err err;
    struct segment *g;
    must(save(&err), &err);
    struct shape other = tiny;
    other.fingerprint++;
    assert_int_equal(segment_open(w.path, &other, "ref", &g, &err), RC_STALE);
    assert_non_null(strstr(err.msg, "another model"));
    assert_int_equal(segment_open(w.path, &tiny, "avx2", &g, &err), RC_STALE);
    assert_non_null(strstr(err.msg, "kernels ref"));
    other = tiny;
    other.kv_type = KV_F32;
    assert_int_equal(segment_open(w.path, &other, "ref", &g, &err), RC_STALE);
    assert_non_null(strstr(err.msg, "f16"));
}

/* The file is the new one (then it reads well), or there is none; nothing else is left by a process that lived. */
static void a_write_that_fails_at_any_call_leaves_nothing(void **state)
{
    (void)state;
    struct err err;
    io_fault_set(&(struct io_fault){0});
    must(save(&err), &err);
    const uint64_t n = io_calls();
    assert_true(n > 8);
    for (int kind = IO_FAULT_FAIL; kind <= IO_FAULT_HALF; kind++)
        for (uint64_t at = 1; at <= n; at++) {
            unlink(w.path);
            io_fault_set(
                &(struct io_fault){.at = at, .kind = (enum io_fault_kind)kind, .sys = ENOSPC});
            const enum rc rc = save(&err);
            io_fault_set(&(struct io_fault){0});
            assert_int_equal(rc, RC_IO);
            assert_int_equal(err.sys, ENOSPC);
            assert_non_null(strstr(err.msg, w.dir));
            unlink(w.tmp); /* removing it was one of the calls that fail */
            if (exists(w.path))
                must(load(&err), &err); /* only the name may not have reached the disk */
        }
}

static void interrupted_and_short_transfers_go_on(void **state)
{
    (void)state;
    struct err err;
    io_fault_set(&(struct io_fault){.at = 1, .kind = IO_FAULT_SHORT});
    must(save(&err), &err);
    must(load(&err), &err);
    io_fault_set(&(struct io_fault){0});
}

static void a_read_that_fails_at_any_call_says_so(void **state)
{
    (void)state;
    struct err err;
    must(save(&err), &err);
    io_fault_set(&(struct io_fault){0});
    must(load(&err), &err);
    const uint64_t n = io_calls();
    for (uint64_t at = 1; at <= n; at++) {
        io_fault_set(&(struct io_fault){.at = at, .kind = IO_FAULT_FAIL, .sys = EIO});
        assert_int_equal(load(&err), RC_IO);
    }
    io_fault_set(&(struct io_fault){0});
}

static void a_process_killed_at_any_call_leaves_the_old_file_or_the_new_one(void **state)
{
    (void)state;
    struct err err;
    io_fault_set(&(struct io_fault){0});
    must(save(&err), &err);
    const uint64_t n = io_calls();
    for (int old = 0; old < 2; old++)
        for (uint64_t at = 1; at <= n; at++) {
            if (!old)
                unlink(w.path);
            const pid_t child = fork();
            assert_true(child >= 0);
            if (!child) {
                io_fault_set(&(struct io_fault){.at = at, .kind = IO_FAULT_KILL});
                _exit(save(&err) == RC_OK);
            }
            int status;
            assert_int_equal(waitpid(child, &status, 0), child);
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
            if (old || exists(w.path))
                must(load(&err), &err);
            unlink(w.tmp);
        }
}

static void without_memory_nothing_is_written_or_leaked(void **state)
{
    (void)state;
    struct err err;
    unlink(w.path);
    mem_fail_after(1);
    assert_int_equal(save(&err), RC_NOMEM);
    mem_fail_after(0);
    assert_false(exists(w.path) || exists(w.tmp));
    must(save(&err), &err);
    for (uint64_t i = 1; i <= 2; i++) {
        struct segment *g;
        mem_fail_after(i);
        assert_int_equal(segment_open(w.path, &tiny, "ref", &g, &err), RC_NOMEM);
        mem_fail_after(0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_read_back_is_what_was_written),
        cmocka_unit_test(one_without_pages_of_its_own_is_a_snapshot),
        cmocka_unit_test(shortening_takes_the_snapshot_then_pages),
        cmocka_unit_test(a_flipped_bit_anywhere_is_noticed),
        cmocka_unit_test(a_file_of_any_other_length_is_refused),
        cmocka_unit_test(state_of_another_model_or_arithmetic_is_stale),
        cmocka_unit_test(a_write_that_fails_at_any_call_leaves_nothing),
        cmocka_unit_test(interrupted_and_short_transfers_go_on),
        cmocka_unit_test(a_read_that_fails_at_any_call_says_so),
        cmocka_unit_test(a_process_killed_at_any_call_leaves_the_old_file_or_the_new_one),
        cmocka_unit_test(without_memory_nothing_is_written_or_leaked),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
