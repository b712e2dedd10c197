#include "base/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void masks_and_lists_name_cpus(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t n, in[3];
    } masks[] = {{"0x5", 2, {0, 2, 2}}, {"F0", 4, {4, 7, 5}}, {"80000000000000001", 2, {0, 67, 0}}},
      lists[] = {{"3", 1, {3, 3, 3}}, {"0-3", 4, {0, 3, 1}}, {"0-1,8,70-71\n", 5, {1, 8, 71}}};
    for (size_t i = 0; i < COUNT_OF(masks); i++)
        for (int list = 0; list < 2; list++) {
            struct cpus c = {0};
            assert_int_equal(list ? cpus_add_list(&c, lists[i].text, NULL)
                                  : cpus_add_mask(&c, masks[i].text, NULL),
                             RC_OK);
            assert_int_equal(cpus_count(&c), list ? lists[i].n : masks[i].n);
            for (int k = 0; k < 3; k++)
                assert_true(cpus_has(&c, list ? lists[i].in[k] : masks[i].in[k]));
        }
}

static void what_names_no_cpus_is_refused(void **state)
{
    (void)state;
    static const char *const masks[] = {"", "0x", "0xg", "-1", "1 "}, *const lists[] = {
                                                                          "",     "a",
                                                                          "3-1",  "0-",
                                                                          "-3",   "1,",
                                                                          "1024", "0-99999999999"};
    char wide[PLACE_MAX_CPUS] = {0};
    memset(wide, 'f', PLACE_MAX_CPUS / 4 + 1);
    struct cpus c = {0};
    struct err err;
    for (size_t i = 0; i < COUNT_OF(masks); i++)
        assert_int_equal(cpus_add_mask(&c, masks[i], &err), RC_ARG);
    for (size_t i = 0; i < COUNT_OF(lists); i++)
        assert_int_equal(cpus_add_list(&c, lists[i], &err), RC_ARG);
    assert_int_equal(cpus_add_mask(&c, wide, &err), RC_ARG);
    assert_int_equal(cpus_count(&c), 0);
    assert_int_equal(cpus_confine(&c, &err), RC_ARG);
}

/* In a child: a process stays where it was put. */
static int in_child(int (*f)(const char *arg), const char *arg)
{
    const pid_t pid = fork();
    if (pid == 0)
        _exit(f(arg));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

static int confine_to_the_last(const char *arg)
{
    (void)arg;
    struct cpus can, c = {0}, now;
    cpus_allowed(&can);
    uint32_t last = 0;
    for (uint32_t i = 0; i < PLACE_MAX_CPUS; i++)
        last = cpus_has(&can, i) ? i : last;
    c.bits[last / 64] = UINT64_C(1) << last % 64;
    if (cpus_confine(&c, NULL))
        return 1;
    cpus_allowed(&now);
    if (memcmp(&now, &c, sizeof c) != 0)
        return 2;
    /* what it gave up it cannot have back by this way */
    return cpus_count(&can) < 2 || cpus_confine(&can, NULL) == RC_ARG ? 0 : 3;
}

static void a_process_keeps_to_its_set(void **state)
{
    (void)state;
    assert_int_equal(in_child(confine_to_the_last, NULL), 0);
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int isolate(const char *sysfs)
{
    struct cpus before, after;
    uint32_t n;
    cpus_allowed(&before);
    if (numa_apply(NUMA_ISOLATE, sysfs, &n, NULL) || n != 2)
        return 1;
    cpus_allowed(&after);
    return memcmp(&before, &after, sizeof after) ? 2 : 0; /* node 1 has all of them */
}

static int distribute(const char *sysfs)
{
    uint32_t n;
    struct err err;
    /* a machine with such nodes spreads, another has no node 1000 */
    const enum rc rc = numa_apply(NUMA_DISTRIBUTE, sysfs, &n, &err);
    return n != 2 || (rc && (rc != RC_IO || !strstr(err.msg, "2 nodes")));
}

static void nodes_are_read_from_sysfs(void **state)
{
    (void)state;
    char dir[] = "/tmp/holdfast-node-XXXXXX", node[64], list[96];
    assert_non_null(mkdtemp(dir));
    uint32_t n = 0;
    assert_int_equal(numa_apply(NUMA_DISTRIBUTE, dir, &n, NULL), RC_OK); /* no file: one */
    assert_int_equal(n, 1);
    put(dir, "online", "0\n");
    assert_int_equal(numa_apply(NUMA_ISOLATE, dir, &n, NULL), RC_OK);
    assert_int_equal(n, 1);
    put(dir, "online", "0,1000\n");
    snprintf(node, sizeof node, "%s/node1000", dir);
    assert_int_equal(mkdir(node, 0700), 0);
    snprintf(list, sizeof list, "0-%d\n", PLACE_MAX_CPUS - 1);
    put(node, "cpulist", list);
    assert_int_equal(in_child(isolate, dir), 0);
    assert_int_equal(in_child(distribute, dir), 0);
    assert_int_equal(numa_apply(NUMA_INHERIT, dir, &n, NULL), RC_OK);
    assert_int_equal(n, 2);
    snprintf(list, sizeof list, "%s/cpulist", node);
    unlink(list);
    rmdir(node);
    snprintf(list, sizeof list, "%s/online", dir);
    unlink(list);
    rmdir(dir);
    enum numa m;
    assert_true(numa_by_name("distribute", &m) && m == NUMA_DISTRIBUTE);
    assert_true(numa_by_name("numactl", &m) && m == NUMA_INHERIT);
    assert_false(numa_by_name("none", &m));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_and_lists_name_cpus),
        cmocka_unit_test(what_names_no_cpus_is_refused),
        cmocka_unit_test(a_process_keeps_to_its_set),
        cmocka_unit_test(nodes_are_read_from_sysfs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
