#include "lab/runner.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

extern char **environ;

struct runner {
    pid_t pid; /* also its process group; 0: over */
    struct client *client;
};

static void nap(uint32_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static enum rc free_port(uint16_t *port, struct err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) ||
        getsockname(fd, (struct sockaddr *)&a, &n)) {
        const enum rc rc = err_sys(err, "no free port");
        if (fd >= 0)
            close(fd);
        return rc;
    }
    close(fd);
    *port = ntohs(a.sin_port);
    return RC_OK;
}

/* The last line of the log that holds anything. */
static void last_line(const char *path, char *out, size_t n)
{
    char tail[1024];
    out[0] = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    if (fseek(f, -(long)(sizeof tail - 1), SEEK_END))
        rewind(f);
    const size_t got = fread(tail, 1, sizeof tail - 1, f);
    fclose(f);
    tail[got] = 0;
    size_t end = got;
    while (end && (uint8_t)tail[end - 1] <= ' ')
        end--;
    tail[end] = 0;
    const char *nl = memrchr(tail, '\n', end);
    snprintf(out, n, "%.*s", (int)n - 1, nl ? nl + 1 : tail);
}

/* In the child: nothing here may allocate. */
static _Noreturn void become(char **argv, char **env, int log_fd)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* it does not outlive the one who measures it */
    const int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd >= 0)
        dup2(null_fd, STDIN_FILENO);
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    environ = env;
    execvp(argv[0], argv);
    static const char text[] = "cannot start the engine: no such program, or not executable\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(127);
}

static size_t count(const char *const *v)
{
    size_t n = 0;
    while (v && v[n])
        n++;
    return n;
}

/* argv with port and directory in it, and our environment with the changes; both end in NULL. */
static enum rc make_words(const struct runner_opts *o, uint16_t port, char ***argv, char ***env,
                          struct err *err)
{
    const size_t n = count(o->argv), n_new = count(o->env),
                 n_old = count((const char *const *)environ);
    *argv = mem_try_array(n + 1, sizeof **argv);
    *env = mem_try_array(n_old + n_new + 1, sizeof **env);
    if (!*argv || !*env)
        return err_set(err, RC_NOMEM, "no memory to start an engine");
    for (size_t i = 0; i < n; i++) {
        struct buf b = BUF_INIT;
        for (const char *p = o->argv[i]; *p;) {
            if (!strncmp(p, "{port}", 6)) {
                buf_addf(&b, "%u", port);
                p += 6;
            } else if (o->dir && !strncmp(p, "{dir}", 5)) {
                buf_adds(&b, o->dir);
                p += 5;
            } else {
                buf_addc(&b, *p++);
            }
        }
        (*argv)[i] = b.n ? buf_take(&b) : mem_strdup("");
        if (!(*argv)[i])
            return err_set(err, RC_NOMEM, "no memory to start an engine");
    }
    size_t k = 0;
    for (size_t i = 0; i < n_old; i++) {
        bool replaced = false;
        for (size_t j = 0; j < n_new; j++) {
            const size_t name = strcspn(o->env[j], "=") + 1;
            replaced |= !strncmp(environ[i], o->env[j], name);
        }
        if (!replaced)
            (*env)[k++] = mem_strdup(environ[i]);
    }
    for (size_t j = 0; j < n_new; j++)
        (*env)[k++] = mem_strdup(o->env[j]);
    return RC_OK;
}

static bool ended(struct runner *r, int *status)
{
    if (waitpid(r->pid, status, WNOHANG) != r->pid)
        return false;
    r->pid = 0;
    return true;
}

static enum rc wait_ready(struct runner *r, const struct runner_opts *o, struct err *err)
{
    const uint64_t end = clock_mono_ns() + (uint64_t)(o->start_s ? o->start_s : 600) * 1000000000u;
    struct buf body = BUF_INIT;
    char last[160];
    int status;
    for (;;) {
        if (ended(r, &status)) {
            last_line(o->log_path, last, sizeof last);
            buf_release(&body);
            return err_set(err, RC_IO, "the engine ended at its start (%s %d): %s",
                           WIFEXITED(status) ? "status" : "signal",
                           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), last);
        }
        if (!client_call(r->client, "GET", "/health", (struct str){0}, &body, NULL) &&
            client_status(r->client) == 200)
            break;
        client_hang_up(r->client);
        if (clock_mono_ns() > end) {
            last_line(o->log_path, last, sizeof last);
            buf_release(&body);
            return err_set(err, RC_IO, "the engine does not answer /health after %u s: %s",
                           o->start_s ? o->start_s : 600, last);
        }
        nap(100);
    }
    buf_release(&body);
    return RC_OK;
}

void runner_words_free(char **w)
{
    for (size_t i = 0; w && w[i]; i++)
        mem_free(w[i]);
    mem_free(w);
}

enum rc runner_start(const struct runner_opts *o, struct runner **out, struct err *err)
{
    struct runner *r = mem_zalloc(sizeof *r);
    char **argv = NULL, **env = NULL, url[64];
    uint16_t port = 0;
    int log_fd = -1;
    if (!count(o->argv)) {
        mem_free(r);
        return err_set(err, RC_ARG, "no command for the engine");
    }
    enum rc rc = free_port(&port, err);
    if (!rc)
        rc = make_words(o, port, &argv, &env, err);
    if (!rc) {
        log_fd = open(o->log_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (log_fd < 0)
            rc = err_sys(err, "%s", o->log_path);
    }
    if (!rc) {
        const struct client_opts c = {.idle_ms = (o->idle_s ? o->idle_s : 3600) * 1000};
        snprintf(url, sizeof url, "http://127.0.0.1:%u", port);
        rc = client_new(url, &c, &r->client, err);
    }
    if (!rc) {
        r->pid = fork();
        if (r->pid == 0)
            become(argv, env, log_fd);
        if (r->pid < 0) {
            r->pid = 0;
            rc = err_sys(err, "fork");
        } else {
            setpgid(r->pid, r->pid); /* whichever of the two comes first */
        }
    }
    if (log_fd >= 0)
        close(log_fd);
    runner_words_free(argv);
    runner_words_free(env);
    if (!rc)
        rc = wait_ready(r, o, err);
    if (rc) {
        runner_stop(r);
        return rc;
    }
    *out = r;
    return RC_OK;
}

void runner_stop(struct runner *r)
{
    int status;
    if (!r)
        return;
    client_free(r->client);
    if (r->pid > 0) {
        kill(-r->pid, SIGTERM);
        for (int i = 0; i < 200 && r->pid; i++) {
            if (ended(r, &status))
                break;
            nap(100);
        }
        if (r->pid) {
            kill(-r->pid, SIGKILL);
            while (waitpid(r->pid, &status, 0) < 0 && errno == EINTR)
                ;
        }
    }
    mem_free(r);
}

struct client *runner_client(struct runner *r)
{
    return r->client;
}

enum rc runner_words(const char *command, char ***words, struct err *err)
{
    struct buf b = BUF_INIT;
    char **v = NULL;
    size_t n = 0, cap = 0;
    bool open_word = false;
    char quote = 0;
    enum rc rc = RC_OK;
    for (const char *p = command; !rc; p++) {
        if (quote ? *p == quote : *p == '\'' || *p == '"') {
            quote = quote ? 0 : *p;
            open_word = true;
        } else if (!*p || (!quote && (*p == ' ' || *p == '\t' || *p == '\n'))) {
            if (!*p && quote)
                rc = err_set(err, RC_ARG, "a quote without its mate in: %s", command);
            if (!rc && open_word) {
                if (!mem_grow(&v, &cap, n + 2, sizeof *v)) {
                    rc = err_set(err, RC_NOMEM, "no memory for a command");
                } else {
                    v[n++] = b.n ? buf_take(&b) : mem_strdup("");
                    v[n] = NULL;
                }
            }
            open_word = false;
            if (!*p)
                break;
        } else {
            buf_addc(&b, *p);
            open_word = true;
        }
    }
    if (!rc && !n)
        rc = err_set(err, RC_ARG, "an empty command");
    buf_release(&b);
    if (rc) {
        runner_words_free(v);
        return rc;
    }
    *words = v;
    return RC_OK;
}
