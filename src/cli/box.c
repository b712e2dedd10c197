#include "cli/box.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char file[] = "models/demo.gguf";

static bool there(char path[BOX_PATH_MAX], const char *dir, size_t dir_len, const char *up)
{
    const int n = snprintf(path, BOX_PATH_MAX, "%.*s%s%s", (int)dir_len, dir, up, file);
    return n > 0 && n < BOX_PATH_MAX && access(path, R_OK) == 0;
}

bool box_find(char path[BOX_PATH_MAX])
{
    if (there(path, "", 0, ""))
        return true;
    char exe[BOX_PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return false;
    exe[n] = 0;
    const size_t dir_len = (size_t)(strrchr(exe, '/') - exe);
    return there(path, exe, dir_len, "/../../");
}

bool box_default(const char *command, const char **model)
{
    static char path[BOX_PATH_MAX];
    if (!box_find(path)) {
        fprintf(stderr, "holdfast %s: which model?  -m FILE (holdfast %s --help)\n", command,
                command);
        return false;
    }
    fprintf(stderr, "holdfast %s: no -m, so the demo model it is: %s\n", command, path);
    *model = path;
    return true;
}
