/* The program over --cache-dir: killed at any moment it comes back with what was complete, and with the same answers. */
#include "program_int.h"

#include "base/rng.h"

static struct scene scene;
static char dir[128];

static int group_set_up(void **state)
{
    (void)state;
    scene_open(&scene);
    scene_make_model(&scene, "tiny", "f16");
    snprintf(dir, sizeof dir, "%s/cache", scene.dir);
    return 0;
}

static int group_tear_down(void **state)
{
    (void)state;
    scene_close(&scene);
    return 0;
}

static void serve(struct program *p, const char *name)
{
    program_serve(
        p, &scene, name,
        (const char *const[]){"-c", "4096", "--cache-dir", dir, "--cache-disk", "1", NULL});
}

static bool log_has(const struct program *p, const char *text)
{
    char *log = whole_file(p->log);
    const bool has = strstr(log, text) != NULL;
    mem_free(log);
    return has;
}

/* The answer to prompt k, of some 1,500 tokens; *cached: how many of them were not evaluated. */
static json_t *answer(struct program *p, uint32_t k, int64_t *cached)
{
    struct buf body = BUF_INIT;
    buf_adds(&body, "{\"temperature\":0,\"n_predict\":16,\"ignore_eos\":true,\"prompt\":[");
    struct rng rng = {k + 1};
    for (uint32_t i = 0; i < 1500; i++)
        buf_addf(&body, "%s%u", i ? "," : "", rng_below(&rng, 256));
    buf_adds(&body, "]}");
    assert_int_equal(ask(p, "POST", "/completion", buf_str(&body)), 200);
    buf_release(&body);
    *cached = int_at(p->json, "timings.cache_n");
    return keep_text(p->json, "content");
}

static int64_t entries_on_disk(struct program *p)
{
    assert_int_equal(ask(p, "GET", "/cache", NULL), 200);
    return int_at(p->json, "disk.n_entries");
}

static int64_t writes(struct program *p)
{
    assert_int_equal(ask(p, "GET", "/cache", NULL), 200);
    return int_at(p->json, "disk.writes");
}

static void kill_it(struct program *p)
{
    program_release(p);
    assert_int_equal(kill(p->pid, SIGKILL), 0);
    assert_int_equal(program_wait(p), 128 + SIGKILL);
}

static void after_kill_9_a_request_goes_on_from_disk_with_the_same_answer(void **state)
{
    (void)state;
    struct program p;
    int64_t cached;
    serve(&p, "first");
    json_t *want = answer(&p, 0, &cached);
    assert_int_equal(cached, 0);
    json_decref(answer(&p, 0, &cached)); /* of use, so worth a write */
    assert_true(cached > 1000);
    EVENTUALLY(writes(&p) > 1);
    kill_it(&p);
    serve(&p, "second");
    assert_true(entries_on_disk(&p) > 0);
    json_t *got = answer(&p, 0, &cached);
    assert_true(cached > 1000);
    assert_true(json_equal(want, got));
    assert_true(log_has(&p, ", disk), evaluated"));
    assert_int_equal(ask(&p, "GET", "/metrics", NULL), 200);
    assert_non_null(strstr(buf_str(&p.reply), "holdfast_disk_reads_total 1\n"));
    assert_int_equal(program_stop(&p), 0);
    json_decref(want);
    json_decref(got);
}

static void killed_at_any_moment_it_starts_again_and_answers_as_ever(void **state)
{
    (void)state;
    enum { N = 4, KILLS = 8 };
    const char *s = getenv("SEED");
    struct rng rng = {s ? strtoull(s, NULL, 10) : 1};
    json_t *want[N];
    int64_t cached;
    struct program p;
    serve(&p, "load");
    for (uint32_t k = 0; k < N; k++)
        want[k] = answer(&p, k, &cached);
    for (int i = 0; i < KILLS; i++) {
        for (uint32_t j = 0; j < 6; j++) {
            const uint32_t k = rng_below(&rng, N);
            json_t *got = answer(&p, k, &cached);
            assert_true(json_equal(want[k], got));
            json_decref(got);
        }
        poll(NULL, 0, (int)rng_below(&rng, 700)); /* it writes from half a second on */
        kill_it(&p);
        serve(&p, "load");
        assert_false(log_has(&p, "damaged"));
    }
    assert_true(entries_on_disk(&p) > 0);
    assert_int_equal(program_stop(&p), 0);
    for (uint32_t k = 0; k < N; k++)
        json_decref(want[k]);
}

static void what_is_only_in_memory_is_written_at_the_end(void **state)
{
    (void)state;
    struct program p;
    int64_t cached;
    serve(&p, "end");
    json_decref(answer(&p, 9, &cached));
    json_decref(answer(&p, 9, &cached));
    assert_int_equal(program_stop(&p), 0); /* at once: nothing was idle */
    serve(&p, "end2");
    json_decref(answer(&p, 9, &cached));
    assert_true(cached > 1000);
    assert_int_equal(program_stop(&p), 0);
}

static void the_slot_that_a_reply_names_can_be_saved_and_restored(void **state)
{
    (void)state;
    struct program p;
    int64_t cached;
    char path[64];
    for (int life = 0; life < 2; life++) {
        program_serve(
            &p, &scene, life ? "restored" : "saved",
            (const char *const[]){"-c", "4096", "-np", "3", "--slot-save-path", scene.dir, NULL});
        if (life) {
            assert_int_equal(ask(&p, "POST", "/slots/2?action=restore", "{\"filename\":\"kept\"}"),
                             200);
            assert_int_equal(int_at(p.json, "n_restored"),
                             1499); /* the reply is too short for a state of its own */
        }
        json_decref(answer(&p, 7, &cached));
        assert_true(life ? cached > 1000 : cached == 0);
        snprintf(path, sizeof path, "/slots/%d?action=save", (int)int_at(p.json, "id_slot"));
        assert_int_equal(ask(&p, "POST", path, "{\"filename\":\"kept\"}"), 200);
        assert_int_equal(int_at(p.json, "n_saved"),
                         1499); /* the reply is too short for a state of its own */
        assert_int_equal(program_stop(&p), 0);
    }
}

static void a_directory_in_use_or_unusable_is_said_and_memory_serves(void **state)
{
    (void)state;
    struct program p, other;
    int64_t cached;
    serve(&p, "one");
    serve(&other, "two");
    assert_true(log_has(&other, "in use by another process; what is kept stays in memory"));
    json_decref(answer(&other, 5, &cached));
    json_decref(answer(&other, 5, &cached));
    assert_true(cached > 1000);
    assert_int_equal(ask(&other, "GET", "/cache", NULL), 200);
    assert_true(json_is_null(at(other.json, "disk")));
    assert_int_equal(program_stop(&other), 0);
    assert_int_equal(program_stop(&p), 0);
    program_serve(&p, &scene, "none",
                  (const char *const[]){"-c", "4096", "--cache-dir", "/proc/none", NULL});
    assert_true(log_has(&p, "cannot make the cache directory /proc/none"));
    json_decref(answer(&p, 5, &cached));
    assert_int_equal(program_stop(&p), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_kill_9_a_request_goes_on_from_disk_with_the_same_answer),
        cmocka_unit_test(killed_at_any_moment_it_starts_again_and_answers_as_ever),
        cmocka_unit_test(what_is_only_in_memory_is_written_at_the_end),
        cmocka_unit_test(the_slot_that_a_reply_names_can_be_saved_and_restored),
        cmocka_unit_test(a_directory_in_use_or_unusable_is_said_and_memory_serves),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
