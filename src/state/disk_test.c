/* A directory of states: whatever is written, given up, damaged or killed, what is read back has the bits that belong to
 * its tokens, or is said to be lost. */
#include "state/disk.h"

#include <dirent.h>
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
                                  .n_delta = 1,
                                  .n_kv_heads = 1,
                                  .head_dim = 8,
                                  .kv_type = KV_F16,
                                  .conv_taps = 2,
                                  .conv_channels = 6,
                                  .n_v_heads = 1,
                                  .state_dim = 4,
                                  .fingerprint = 99};
enum { MAX_POS = 640, MAX_PAGES = MAX_POS / KV_PAGE };

static char dir[256];
static uint64_t seed;

/* ---- states that follow from tokens ---------------------------------------------------------- */

/* What a model would compute, as far as anyone here can tell: rows of a page from the tokens up to them, the
 * snapshot from all. */
static void make_page(const token *seq, uint32_t pos, uint32_t j, uint8_t *out)
{
    const uint64_t row = shape_token_bytes(&tiny);
    for (uint32_t i = 0; i < KV_PAGE; i++) {
        const uint32_t at = j * KV_PAGE + i;
        struct rng rng = {at < pos ? segment_hash(seq, at + 1) : 0};
        for (uint64_t b = 0; b < row; b++)
            out[i * row + b] = (uint8_t)rng_u64(&rng);
    }
}

static void make_snap(const token *seq, uint32_t pos, uint8_t *out)
{
    struct rng rng = {segment_hash(seq, pos) + 1};
    for (uint64_t b = 0; b < shape_snap_bytes(&tiny); b++)
        out[b] = (uint8_t)rng_u64(&rng);
}

struct bytes {
    uint8_t *page[MAX_PAGES], *snap;
};

static void bytes_init(struct bytes *b)
{
    for (int j = 0; j < MAX_PAGES; j++)
        b->page[j] = mem_zalloc(shape_page_bytes(&tiny));
    b->snap = mem_zalloc(shape_snap_bytes(&tiny));
}

static void bytes_release(struct bytes *b)
{
    for (int j = 0; j < MAX_PAGES; j++)
        mem_free(b->page[j]);
    mem_free(b->snap);
}

static uint32_t n_pages(uint32_t pos)
{
    return (pos + KV_PAGE - 1) / KV_PAGE;
}

static void make(struct bytes *b, const token *seq, uint32_t pos)
{
    for (uint32_t j = 0; j < n_pages(pos); j++)
        make_page(seq, pos, j, b->page[j]);
    make_snap(seq, pos, b->snap);
}

/* ---- helpers --------------------------------------------------------------------------------- */

static struct logger lg = {.level = LOG_WARN};

static enum rc try_open(uint64_t max_bytes, struct disk **d, struct err *err)
{
    const struct disk_opts o = {
        .dir = dir, .max_bytes = max_bytes, .shape = tiny, .kernels = "ref", .lg = &lg};
    return disk_open(&o, d, err);
}

static struct disk *open_dir(void)
{
    struct disk *d;
    struct err err;
    if (try_open(GIB, &d, &err))
        fail_msg("%s", err.msg);
    return d;
}

static struct disk_done wait_for(struct disk *d)
{
    struct disk_done done;
    while (!disk_poll(d, UINT64_MAX, &done))
        continue;
    return done;
}

static disk_ref start_write(struct disk *d, struct bytes *b, const token *seq, uint32_t pos,
                            uint64_t used_ns)
{
    make(b, seq, pos);
    const struct segment_head h = {.pos = pos, .used_ns = used_ns, .kind = 2};
    return disk_write(d, &h, seq, (const void *const *)b->page, b->snap, used_ns);
}

static disk_ref put(struct disk *d, const token *seq, uint32_t pos, uint64_t used_ns)
{
    struct bytes b;
    bytes_init(&b);
    const disk_ref r = start_write(d, &b, seq, pos, used_ns);
    assert_true(r);
    const struct disk_done done = wait_for(d);
    assert_true(done.write && done.ref == r && done.tag == used_ns);
    bytes_release(&b);
    return done.rc ? 0 : r;
}

/* RC_OK only with the right bits. */
static enum rc get(struct disk *d, disk_ref r, uint32_t first)
{
    struct bytes b, want;
    bytes_init(&b);
    bytes_init(&want);
    token seq[MAX_POS];
    const uint32_t pos = disk_head(d, r)->pos;
    disk_path(d, r, seq);
    assert_true(disk_read(d, r, first, (void *const *)b.page, b.snap, 5));
    const struct disk_done done = wait_for(d);
    assert_true(!done.write && done.ref == r && done.tag == 5);
    make(&want, seq, pos);
    const uint64_t row = shape_token_bytes(&tiny);
    for (uint32_t j = first; j < n_pages(pos) && !done.rc; j++)
        assert_memory_equal(b.page[j - first], want.page[j],
                            (MIN(pos, (j + 1) * KV_PAGE) - j * KV_PAGE) * row);
    if (!done.rc)
        assert_memory_equal(b.snap, want.snap, shape_snap_bytes(&tiny));
    bytes_release(&b);
    bytes_release(&want);
    return done.rc;
}

static void new_tokens(token *seq, uint32_t from, uint32_t to, struct rng *rng)
{
    for (uint32_t i = from; i < to; i++)
        seq[i] = (token)rng_below(rng, 50);
}

/* Calls fn for each file but the lock; returns their bytes. */
static uint64_t each_file(void (*fn)(const char *path, const char *name))
{
    uint64_t n = 0;
    DIR *at = opendir(dir);
    assert_non_null(at);
    for (const struct dirent *e; (e = readdir(at));) {
        char path[600];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] == '.' || !strcmp(e->d_name, "lock") || stat(path, &st))
            continue;
        n += (uint64_t)st.st_size;
        if (fn)
            fn(path, e->d_name);
    }
    closedir(at);
    return n;
}

static void remove_file(const char *path, const char *name)
{
    (void)name;
    unlink(path);
}

/* What is proved does not need the disk to be real, and syncing a busy one takes minutes. */
static const char memory[] = "/dev/shm";

static int set_up(void **state)
{
    (void)state;
    const char *s = getenv("SEED");
    seed = s ? strtoull(s, NULL, 10) : 1;
    snprintf(dir, sizeof dir, "%s/disk_test-XXXXXX",
             access(memory, W_OK) ? HOUSE_BINARY_DIR : memory);
    return mkdtemp(dir) == NULL;
}

static int clear(void **state)
{
    (void)state;
    io_fault_set(&(struct io_fault){0});
    each_file(remove_file);
    return 0;
}

static int tear_down(void **state)
{
    char path[300];
    clear(state);
    snprintf(path, sizeof path, "%s/lock", dir);
    unlink(path);
    return rmdir(dir);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void entries_are_found_again_with_their_bits_in_order_of_use(void **state)
{
    (void)state;
    struct rng rng = {seed};
    token a[MAX_POS], b[MAX_POS], path[MAX_POS];
    new_tokens(a, 0, MAX_POS, &rng);
    memcpy(b, a, sizeof b);
    new_tokens(b, 200, MAX_POS, &rng);
    b[200] = a[200] + 1;
    struct disk *d = open_dir();
    assert_true(put(d, a, 400, 30));
    assert_true(put(d, b, 500, 10));
    assert_true(put(d, a, 333, 20));
    disk_close(d);
    d = open_dir();
    const uint32_t pos[] = {500, 333, 400};
    for (uint32_t i = 0; i < 3; i++) {
        const disk_ref r = disk_at(d, i);
        assert_int_equal(disk_head(d, r)->pos, pos[i]);
        assert_int_equal(disk_head(d, r)->used_ns, 10 * (i + 1));
        assert_int_equal(disk_head(d, r)->kind, 2);
        disk_path(d, r, path);
        assert_memory_equal(path, i ? a : b, pos[i] * sizeof *path);
        assert_int_equal(get(d, r, 0), RC_OK);
        assert_int_equal(get(d, r, 4), RC_OK);
        assert_int_equal(get(d, r, n_pages(pos[i])), RC_OK);
    }
    assert_int_equal(disk_at(d, 3), 0);
    disk_close(d);
}

static void what_others_have_is_not_written_again(void **state)
{
    (void)state;
    struct rng rng = {seed};
    token a[MAX_POS];
    new_tokens(a, 0, MAX_POS, &rng);
    struct disk *d = open_dir();
    const disk_ref deep = put(d, a, 640, 1), same = put(d, a, 300, 2);
    assert_int_equal(disk_head(d, same)->from, 300); /* no pages of its own */
    a[200]++;
    const disk_ref branch = put(d, a, 640, 3);
    assert_int_equal(disk_head(d, branch)->from, 192);
    /* the first goes; what the others need of it stays, no more */
    disk_drop(d, deep);
    assert_int_equal(get(d, same, 0), RC_OK);
    assert_int_equal(get(d, branch, 0), RC_OK);
    struct disk_stats st;
    disk_stats(d, &st);
    disk_close(d);
    assert_int_equal(each_file(NULL), st.bytes);
    const uint64_t page = shape_page_bytes(&tiny), snap = shape_snap_bytes(&tiny);
    assert_int_equal(st.bytes, 3 * 4096 + 5 * page + snap + 7 * page + snap);
}

/* Random writes, reads, drops and restarts against a list of what there is. */
static void random_traffic_loses_nothing_and_leaves_nothing(void **state)
{
    (void)state;
    enum { MAX_ENTRIES = 24, STEPS = 1500 };
    struct rng rng = {seed};
    struct {
        token seq[MAX_POS];
        uint32_t pos;
        uint64_t stamp;
        disk_ref ref;
    } *e = mem_zalloc(MAX_ENTRIES * sizeof *e);
    uint32_t n = 0;
    uint64_t stamp = 0;
    struct disk *d = open_dir();
    for (int step = 0; step < STEPS; step++) {
        const uint64_t what = rng_below(&rng, 100);
        const uint32_t i = n ? (uint32_t)rng_below(&rng, n) : 0;
        if (what < 40 && n < MAX_ENTRIES) {
            uint32_t common = 0;
            if (n) { /* goes on from another, at any place */
                memcpy(e[n].seq, e[i].seq, sizeof e[n].seq);
                common = (uint32_t)rng_below(&rng, e[i].pos + 1);
            }
            e[n].pos = common + (uint32_t)rng_below(&rng, MAX_POS - common) + (common == 0);
            new_tokens(e[n].seq, common, MAX_POS, &rng);
            bool there = e[n].pos == 0;
            for (uint32_t k = 0; k < n; k++)
                there |= e[k].pos == e[n].pos && !memcmp(e[k].seq, e[n].seq, e[n].pos * 4);
            if (there)
                continue;
            e[n].stamp = ++stamp;
            e[n].ref = put(d, e[n].seq, e[n].pos, e[n].stamp);
            n++;
        } else if (what < 60 && n) {
            disk_drop(d, e[i].ref);
            e[i] = e[--n];
        } else if (what < 95 && n) {
            assert_int_equal(get(d, e[i].ref, (uint32_t)rng_below(&rng, n_pages(e[i].pos) + 1)),
                             RC_OK);
        } else if (what >= 95) {
            disk_close(d);
            d = open_dir();
            struct disk_stats st;
            disk_stats(d, &st);
            assert_int_equal(st.n_entries, n);
            for (uint32_t k = 0; k < n; k++) {
                const disk_ref r = disk_at(d, k);
                uint32_t m = 0;
                while (m < n && e[m].stamp != disk_head(d, r)->used_ns)
                    m++;
                assert_true(m < n);
                e[m].ref = r;
            }
        }
    }
    struct disk_stats st;
    disk_stats(d, &st);
    disk_close(d);
    if (each_file(NULL) != st.bytes)
        fail_msg("SEED=%" PRIu64 ": %" PRIu64 " bytes in files, %" PRIu64 " counted", seed,
                 each_file(NULL), st.bytes);
    d = open_dir();
    for (uint32_t k = 0; k < n; k++)
        disk_drop(d, disk_at(d, k));
    disk_close(d);
    assert_int_equal(each_file(NULL), 0);
    mem_free(e);
}

/* Three entries on one path and a branch, in files 1 to 4. */
static void write_four(struct disk *d, token *a, token *b)
{
    struct rng rng = {seed};
    new_tokens(a, 0, MAX_POS, &rng);
    memcpy(b, a, MAX_POS * sizeof *b);
    b[100]++;
    assert_true(put(d, a, 130, 1));
    assert_true(put(d, a, 400, 2));
    assert_true(put(d, a, 640, 3));
    assert_true(put(d, b, 300, 4));
}

static void flip(uint64_t id, uint64_t at)
{
    char path[300], c;
    snprintf(path, sizeof path, "%s/%016" PRIx64 ".seg", dir, id);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, (off_t)at), 1);
    c ^= 4;
    assert_int_equal(pwrite(fd, &c, 1, (off_t)at), 1);
    close(fd);
}

static uint32_t n_that_read_well(struct disk *d)
{
    uint32_t n = 0;
    for (uint32_t i = 0; disk_at(d, i); i++)
        n += get(d, disk_at(d, i), 0) == RC_OK;
    return n;
}

static void damage_loses_what_it_hits_and_nothing_else(void **state)
{
    token a[MAX_POS], b[MAX_POS];
    const uint64_t page = shape_page_bytes(&tiny);
    const struct {
        uint64_t at;
        uint32_t found, good;
    } of_second[] = {
        /* file 2: [128, 400) of a, which file 3 goes on from at 384 */
        {20, 2, 2},                  /* header: and what goes on from it */
        {300, 2, 2},                 /* tokens */
        {3000, 2, 2},                /* what fills up the index */
        {4096 + page / 2, 4, 2},     /* KV that both have */
        {4096 + 4 * page + 3, 4, 3}, /* its last page, which the next has a copy of */
        {4096 + 5 * page + 7, 4, 3}, /* snapshot */
    };
    for (size_t i = 0; i < COUNT_OF(of_second); i++) {
        clear(state);
        struct disk *d = open_dir();
        write_four(d, a, b);
        disk_close(d);
        flip(2, of_second[i].at);
        d = open_dir();
        struct disk_stats st;
        disk_stats(d, &st);
        assert_int_equal(st.n_entries, of_second[i].found);
        assert_int_equal(n_that_read_well(d), of_second[i].good);
        /* what comes later does not stand on damaged pages */
        a[639]++;
        const disk_ref r = put(d, a, 640, 9);
        assert_true(r);
        assert_int_equal(get(d, r, 0), RC_OK);
        disk_close(d);
    }
}

static void torn_files_go_and_those_of_others_stay(void **state)
{
    (void)state;
    token a[MAX_POS], b[MAX_POS];
    char path[300];
    struct err err;
    struct disk *d = open_dir();
    write_four(d, a, b);
    disk_close(d);
    snprintf(path, sizeof path, "%s/%016x.seg", dir, 4);
    assert_int_equal(truncate(path, 5000), 0); /* torn */
    snprintf(path, sizeof path, "%s/%016x.seg", dir, 3);
    const int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\x07", 1, 8), 1); /* newer */
    close(fd);
    snprintf(path, sizeof path, "%s/%016x.seg", dir, 77);
    assert_int_equal(file_write_atomically(path, "hello", 5, &err), RC_OK);
    snprintf(path, sizeof path, "%s/notes.txt", dir);
    assert_int_equal(file_write_atomically(path, "hello", 5, &err), RC_OK);
    snprintf(path, sizeof path, "%s/%016x.seg.tmp", dir, 80);
    assert_int_equal(file_write_atomically(path, "HOLDSEG", 7, &err), RC_OK);

    char *said = NULL;
    size_t n = 0;
    lg.out = open_memstream(&said, &n);
    d = open_dir();
    assert_int_equal(n_that_read_well(d), 2);
    assert_true(put(d, b, 200, 9));
    disk_close(d);
    fclose(lg.out);
    lg.out = NULL;
    assert_non_null(
        strstr(said, "0000000000000004.seg ends at byte 5000, inside its payload; removed"));
    assert_non_null(
        strstr(said, "0000000000000003.seg has format 7; this program knows 1; left alone"));
    assert_non_null(strstr(said, "000000000000004d.seg holds no saved state; left alone"));
    assert_non_null(strstr(said, "notes.txt is no file of ours; left alone"));
    free(said);
    const struct {
        const char *name;
        bool stays;
    } files[] = {{"0000000000000004.seg", false},     {"0000000000000003.seg", true},
                 {"000000000000004d.seg", true},      {"notes.txt", true},
                 {"0000000000000050.seg.tmp", false}, {"000000000000004e.seg", true}};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i].name);
        assert_int_equal(access(path, F_OK) == 0, files[i].stays);
    }
}

static void a_second_process_is_told_so(void **state)
{
    (void)state;
    struct err err;
    struct disk *d = open_dir(), *other;
    assert_int_equal(try_open(GIB, &other, &err), RC_LIMIT);
    assert_non_null(strstr(err.msg, "in use by another process"));
    disk_close(d);
    disk_close(open_dir());
}

static void a_directory_that_cannot_be_written_is_refused(void **state)
{
    (void)state;
    struct err err;
    struct disk *d;
    struct disk_opts o = {
        .dir = "/proc/no/such", .max_bytes = GIB, .shape = tiny, .kernels = "ref", .lg = &lg};
    assert_int_equal(disk_open(&o, &d, &err), RC_IO);
    assert_non_null(strstr(err.msg, "/proc/no/such"));
    o.dir = "/proc/self/status"; /* a file */
    assert_int_equal(disk_open(&o, &d, &err), RC_IO);
}

static void the_budget_is_kept(void **state)
{
    (void)state;
    struct rng rng = {seed};
    struct err err;
    struct disk *d;
    token a[MAX_POS];
    new_tokens(a, 0, MAX_POS, &rng);
    const uint64_t one = 4096 + 10 * shape_page_bytes(&tiny) + shape_snap_bytes(&tiny);
    if (try_open(one + 5000, &d, &err))
        fail_msg("%s", err.msg);
    const disk_ref r = put(d, a, 640, 1);
    struct bytes b;
    bytes_init(&b);
    a[0]++;
    assert_int_equal(start_write(d, &b, a, 640, 2), 0);
    disk_drop(d, r);
    assert_true(put(d, a, 640, 2));
    bytes_release(&b);
    disk_close(d);
}

/* The disk fills up in the middle of three entries that go on from one another. */
static void a_full_disk_costs_the_entries_not_written_and_no_more(void **state)
{
    (void)state;
    struct rng rng = {seed};
    token a[MAX_POS];
    new_tokens(a, 0, MAX_POS, &rng);
    for (uint64_t at = 1; at <= 24; at++) {
        clear(state);
        struct disk *d = open_dir();
        assert_true(put(d, a, 100, 1));
        struct bytes b[3];
        io_fault_set(&(struct io_fault){
            .at = at, .kind = at % 2 ? IO_FAULT_FAIL : IO_FAULT_HALF, .sys = ENOSPC});
        uint32_t failed = 0;
        for (uint32_t i = 0; i < 3; i++) {
            bytes_init(&b[i]);
            assert_true(start_write(d, &b[i], a, 300 + 100 * i, 2 + i));
        }
        for (uint32_t i = 0; i < 3; i++) {
            const struct disk_done done = wait_for(d);
            assert_true(!done.rc || done.rc == RC_IO || done.rc == RC_STALE);
            failed += done.rc != RC_OK;
        }
        io_fault_set(&(struct io_fault){0});
        assert_true(failed > 0);
        struct disk_stats st;
        disk_stats(d, &st);
        assert_true(st.writes_off && st.failed_writes == failed && st.n_entries == 4 - failed);
        assert_int_equal(start_write(d, &b[0], a, 600, 9), 0); /* not for a minute */
        for (uint32_t i = 0; i < 3; i++)
            bytes_release(&b[i]);
        disk_close(d);
        d = open_dir();
        /* one more when only telling the directory failed, and removing it too */
        assert_in_range(n_that_read_well(d), 4 - failed, 5 - failed);
        disk_stats(d, &st);
        disk_close(d);
        assert_int_equal(each_file(NULL), st.bytes);
    }
}

static void interrupted_and_short_transfers_change_nothing(void **state)
{
    (void)state;
    token a[MAX_POS], b[MAX_POS];
    struct disk *d = open_dir();
    io_fault_set(&(struct io_fault){.at = 1, .kind = IO_FAULT_SHORT});
    write_four(d, a, b);
    disk_close(d);
    d = open_dir();
    assert_int_equal(n_that_read_well(d), 4);
    disk_close(d);
}

static void keep(struct disk *d, const char *what)
{
    char *copy = mem_strdup(what);
    disk_keep(d, copy, strlen(what));
}

static bool is_kept(const struct disk *d, const char *what)
{
    size_t n;
    const char *p = disk_kept(d, &n);
    return p && n == strlen(what) && !memcmp(p, what, n);
}

static void what_was_learned_is_found_again_and_what_is_not_ours_is_left_alone(void **state)
{
    (void)state;
    char path[300];
    struct err err;
    size_t n;
    struct disk *d = open_dir();
    assert_null(disk_kept(d, &n));
    keep(d, "first");
    keep(d, "second");
    disk_close(d);
    d = open_dir();
    assert_true(is_kept(d, "second"));
    disk_close(d);
    /* another model has its own */
    struct disk_opts o = {.dir = dir, .max_bytes = GIB, .shape = tiny, .kernels = "ref", .lg = &lg};
    o.shape.fingerprint++;
    assert_int_equal(disk_open(&o, &d, &err), RC_OK);
    assert_null(disk_kept(d, &n));
    keep(d, "other");
    disk_close(d);

    static const struct {
        uint8_t byte;
        int at;
        const char *line;
        bool replaced;
    } cases[] = {{'X', 50, ".learned is damaged; begun without", true},
                 {9, 8,
                  "has format 9; this program knows 1; begun without what was learned, and left",
                  false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        snprintf(path, sizeof path, "%s/%016" PRIx64 ".learned", dir, tiny.fingerprint);
        const int fd = open(path, O_WRONLY);
        assert_int_equal(pwrite(fd, &cases[i].byte, 1, cases[i].at), 1);
        close(fd);
        char *said = NULL;
        size_t n_said = 0;
        lg.out = open_memstream(&said, &n_said);
        d = open_dir();
        assert_null(disk_kept(d, &n));
        keep(d, "third");
        disk_close(d);
        fclose(lg.out);
        lg.out = NULL;
        assert_non_null(strstr(said, cases[i].line));
        assert_ptr_equal(strchr(said, '\n'), said + n_said - 1); /* one line */
        free(said);
        lg.out = fopen("/dev/null", "w");
        d = open_dir();
        fclose(lg.out);
        lg.out = NULL;
        assert_int_equal(is_kept(d, "third"), cases[i].replaced);
        disk_close(d);
    }
    assert_int_equal(disk_open(&o, &d, &err), RC_OK);
    assert_true(is_kept(d, "other"));
    disk_close(d);
}

/* A process writes, drops and writes on, telling after each write what it knows to be there; it is killed at every
 * system call.  All it told of and did not drop afterwards is found. */
static void child_script(int told)
{
    token a[MAX_POS], b[MAX_POS];
    struct disk *d = open_dir();
    write_four(d, a, b);
    if (write(told, "4", 1) != 1)
        _exit(9);
    keep(d, "learned");
    disk_drop(d, 1); /* 130 of a: the others need its pages */
    a[500]++;
    assert_true(put(d, a, 600, 5));
    if (write(told, "5", 1) != 1)
        _exit(9);
    disk_drop(d, 4);
    disk_close(d);
}

static void a_process_killed_at_any_call_loses_nothing_that_was_complete(void **state)
{
    uint64_t n = 0;
    for (uint64_t at = 1; at < 400; at++) {
        clear(state);
        int told[2];
        assert_int_equal(pipe(told), 0);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            io_fault_set(&(struct io_fault){.at = at, .kind = IO_FAULT_KILL});
            child_script(told[1]);
            _exit(0);
        }
        close(told[1]);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        char last = 0, c;
        while (read(told[0], &c, 1) == 1)
            last = c;
        close(told[0]);
        struct disk *d = open_dir();
        const uint32_t good = n_that_read_well(d);
        struct disk_stats st;
        size_t n_kept;
        const void *kept = disk_kept(d, &n_kept);
        assert_true(!kept || (n_kept == 7 && !memcmp(kept, "learned", 7)));
        disk_stats(d, &st);
        assert_int_equal(st.n_entries, good); /* none is torn */
        if (last == '4')
            assert_true(good >= 3);
        if (last == '5')
            assert_true(kept && good >= 3 && good <= 4);
        disk_close(d);
        assert_int_equal(each_file(NULL), st.bytes + (kept ? 48 + n_kept : 0));
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            n = at;
            break;
        }
        assert_int_equal(WTERMSIG(status), SIGKILL);
    }
    assert_true(n > 40); /* it got through in the end */
}

static void without_memory_it_is_refused_and_nothing_leaks(void **state)
{
    (void)state;
    token a[MAX_POS], b[MAX_POS];
    struct disk *d = open_dir();
    write_four(d, a, b);
    disk_close(d);
    struct err err;
    bool through = false;
    for (uint64_t i = 1; i < 200 && !through; i++) {
        mem_fail_after(i);
        const enum rc rc = try_open(GIB, &d, &err);
        mem_fail_after(0);
        through = rc == RC_OK;
        if (through) {
            assert_int_equal(n_that_read_well(d), 4);
            disk_close(d);
        } else {
            assert_int_equal(rc, RC_NOMEM);
        }
    }
    assert_true(through);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(entries_are_found_again_with_their_bits_in_order_of_use, clear),
        cmocka_unit_test_teardown(what_others_have_is_not_written_again, clear),
        cmocka_unit_test_teardown(random_traffic_loses_nothing_and_leaves_nothing, clear),
        cmocka_unit_test_teardown(damage_loses_what_it_hits_and_nothing_else, clear),
        cmocka_unit_test_teardown(torn_files_go_and_those_of_others_stay, clear),
        cmocka_unit_test_teardown(a_second_process_is_told_so, clear),
        cmocka_unit_test_teardown(a_directory_that_cannot_be_written_is_refused, clear),
        cmocka_unit_test_teardown(the_budget_is_kept, clear),
        cmocka_unit_test_teardown(a_full_disk_costs_the_entries_not_written_and_no_more, clear),
        cmocka_unit_test_teardown(interrupted_and_short_transfers_change_nothing, clear),
        cmocka_unit_test_teardown(
            what_was_learned_is_found_again_and_what_is_not_ours_is_left_alone, clear),
        cmocka_unit_test_teardown(a_process_killed_at_any_call_loses_nothing_that_was_complete,
                                  clear),
        cmocka_unit_test_teardown(without_memory_it_is_refused_and_nothing_leaks, clear),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
