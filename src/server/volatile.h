/* volatile.h - lines that clients put into the system prompt and that change by themselves.
 *
 * One such line near the beginning makes each request a prompt of its own.  On demand (--drop-volatile)
 * those known are left out of the system messages before the first other one; the list is in
 * docs/clients.md.  Off by default: what is dropped the model does not know.
 */
#ifndef HOLDFAST_SERVER_VOLATILE_H
#define HOLDFAST_SERVER_VOLATILE_H

#include <jansson.h>

#include "base/err.h"

enum volatile_kind {
    VOLATILE_BILLING = 1, /* x-anthropic-billing-header: ... */
    VOLATILE_DATE = 2,    /* Today's date: ... */
    VOLATILE_GIT = 4,     /* gitStatus: ... and what follows it */
    VOLATILE_CWD = 8,     /* Working directory: ... */
    VOLATILE_SESSION = 16 /* Session ID: ... */
};

/* "billing,date", "all"; RC_ARG names what is not known. */
NODISCARD enum rc volatile_parse(const char *list, unsigned *kinds, struct err *err);
/* *messages (OpenAI's shape, unchecked) is replaced by a copy where something has been dropped.
 * RC_NOMEM. */
NODISCARD enum rc volatile_drop(unsigned kinds, json_t **messages, struct err *err);

#endif
