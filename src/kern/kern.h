/* kern.h - a table of functions per instruction set: the arithmetic of nn's operators.
 *
 * nn gets a table from kern/pick.h and calls through it; nothing else is exported by a kernel file.
 * Within a table a row's result depends on that row alone (README.md, "Order of summation").
 */
#ifndef HOLDFAST_KERN_KERN_H
#define HOLDFAST_KERN_KERN_H

#include "base/base.h"

struct kern {
    const char *name; /* "ref", "avx2", "avx512", "avx512_vnni", "neon" */

    /* ---- sequence operators: kern/body_seq.inc fills them (KERN_SEQ_ENTRIES) ---- */
    /* ---- end of the sequence operators ---- */
};

#endif
