/* fuzz_replay.c - run a fuzz target over the files and directories named, without libFuzzer.
 *
 * So that every build replays the committed corpus.  Options (-runs=0 and the like) are ignored.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    fseek(f, 0, SEEK_END);
    const long n = ftell(f);
    rewind(f);
    uint8_t *p = malloc(n > 0 ? (size_t)n : 1);
    if (!p || fread(p, 1, (size_t)n, f) != (size_t)n) {
        perror(path);
        free(p);
        fclose(f);
        return 1;
    }
    fclose(f);
    LLVMFuzzerTestOneInput(p, (size_t)n);
    free(p);
    return 0;
}

static int replay(const char *path, unsigned *n_files)
{
    struct stat st;
    if (stat(path, &st)) {
        perror(path);
        return 1;
    }
    if (!S_ISDIR(st.st_mode)) {
        ++*n_files;
        return replay_file(path);
    }
    DIR *d = opendir(path);
    if (!d) {
        perror(path);
        return 1;
    }
    int bad = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char sub[4096];
        if (e->d_name[0] == '.')
            continue;
        snprintf(sub, sizeof sub, "%s/%s", path, e->d_name);
        bad |= replay(sub, n_files);
    }
    closedir(d);
    return bad;
}

int main(int argc, char **argv)
{
    unsigned n_files = 0;
    int bad = 0;
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-')
            bad |= replay(argv[i], &n_files);
    printf("%u inputs replayed\n", n_files);
    return bad || !n_files;
}
