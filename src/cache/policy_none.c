/* policy_none.c - keeps nothing: every prompt is evaluated whole.  The baseline of every comparison. */
#include "cache/policy.h"

const struct policy policy_none = {.name = "none"};
