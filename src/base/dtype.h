/* dtype.h - the tensor types of a GGUF file: id, name, block size.
 *
 * gguf checks sizes with it and kern decodes by it, and neither may use the other.
 */
#ifndef HOLDFAST_BASE_DTYPE_H
#define HOLDFAST_BASE_DTYPE_H

#include "base/base.h"

/* The numbers are the file format's. */
enum dtype {
    DT_F32 = 0,
    DT_F16 = 1,
    DT_Q4_0 = 2,
    DT_Q4_1 = 3,
    DT_Q5_0 = 6,
    DT_Q5_1 = 7,
    DT_Q8_0 = 8,
    DT_Q2_K = 10,
    DT_Q3_K = 11,
    DT_Q4_K = 12,
    DT_Q5_K = 13,
    DT_Q6_K = 14,
    DT_IQ4_NL = 20,
    DT_IQ4_XS = 23,
    DT_BF16 = 30,
    DT_MXFP4 = 39
};

struct dtype_info {
    enum dtype type;
    const char *name;     /* "q4_K" as llama.cpp prints it */
    uint32_t block_elems; /* elements per block: 1, 32 or 256 */
    uint32_t block_bytes;
};

/* NULL for an id we do not know. */
const struct dtype_info *dtype_info(uint32_t id);
/* By name, case-insensitive ("q8_0", "F16"); NULL when unknown. */
const struct dtype_info *dtype_by_name(const char *name);

#endif
