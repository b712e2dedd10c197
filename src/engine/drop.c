#include "engine/drop.h"

const char *drop_name(enum drop_why why)
{
    static const char *const names[DROP_N] = {
        [DROP_BUDGET] = "budget", [DROP_MEMORY] = "memory", [DROP_USER] = "user",
        [DROP_AUDIT] = "audit",   [DROP_ERASED] = "erased", [DROP_SHUTDOWN] = "shutdown",
    };
    return names[why];
}
