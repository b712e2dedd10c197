/* gguf.h - a model file: keys and tensors, every size checked before it is used.
 *
 * The file stays mapped; strings and tensor data are borrowed from the map until gguf_close().
 * Split files (NAME-00001-of-0000N.gguf) are opened by their first part, the others are found
 * beside it.  Format: docs/formats/gguf.md.
 */
#ifndef HOLDFAST_GGUF_GGUF_H
#define HOLDFAST_GGUF_GGUF_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"

struct gguf;

enum gguf_kind { /* the file's numbers */
                 GGUF_U8,
                 GGUF_I8,
                 GGUF_U16,
                 GGUF_I16,
                 GGUF_U32,
                 GGUF_I32,
                 GGUF_F32,
                 GGUF_BOOL,
                 GGUF_STR,
                 GGUF_ARR,
                 GGUF_U64,
                 GGUF_I64,
                 GGUF_F64
};

struct gguf_key {
    struct str name;
    enum gguf_kind kind;
    enum gguf_kind elem; /* of a GGUF_ARR, else = kind: a single value reads as an array of one */
    uint64_t n;          /* elements of a GGUF_ARR, else 1 */
    const uint8_t *data; /* first value (unaligned, little-endian; a string with its u64 length) */
    uint64_t bytes;      /* of all values */
};

struct gguf_tensor {
    struct str name;
    uint32_t n_dims;
    uint64_t ne[4]; /* first is contiguous; missing dimensions are 1 */
    enum dtype type;
    const uint8_t *data;
    uint64_t bytes;
    uint32_t part; /* which file of a split one, from 0 */
};

NODISCARD enum rc gguf_open(const char *path, struct gguf **out, struct err *err);
/* The same, with the file read into memory first: for storage that is slow or may go away. */
NODISCARD enum rc gguf_open_copy(const char *path, struct gguf **out, struct err *err);
/* From memory (tests, fuzzing); p is borrowed until gguf_close and should be aligned like a mapping:
 * tensor data then is, to at least 8 bytes.  RC_UNSUPPORTED for a part of a split file. */
NODISCARD enum rc gguf_open_mem(const void *p, uint64_t n, struct gguf **out, struct err *err);
void gguf_close(struct gguf *g);

const char *gguf_kind_name(enum gguf_kind k); /* "u32" */
uint32_t gguf_version(const struct gguf *g);
uint32_t gguf_n_parts(const struct gguf *g);    /* 1 unless split */
uint64_t gguf_file_bytes(const struct gguf *g); /* of all parts */
uint64_t gguf_n_keys(const struct gguf *g);
const struct gguf_key *gguf_key_at(const struct gguf *g, uint64_t i);
const struct gguf_key *gguf_find_key(const struct gguf *g, const char *name); /* or NULL */
uint64_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name); /* or NULL */

/* Typed reads.  Absent: *out keeps its value and RC_OK, unless required (RC_FORMAT naming the key).
 * Any integer kind serves an integer, f32 or f64 a float; out of range is RC_FORMAT. */
NODISCARD enum rc gguf_get_u32(const struct gguf *g, const char *name, bool required, uint32_t *out,
                               struct err *err);
NODISCARD enum rc gguf_get_f32(const struct gguf *g, const char *name, bool required, float *out,
                               struct err *err);
NODISCARD enum rc gguf_get_bool(const struct gguf *g, const char *name, bool required, bool *out,
                                struct err *err);
NODISCARD enum rc gguf_get_str(const struct gguf *g, const char *name, bool required,
                               struct str *out, struct err *err);

/* Element i < key->n of an integer (or bool) array; false when the kind is no integer, or for a u64
 * beyond INT64_MAX. */
NODISCARD bool gguf_arr_i64(const struct gguf_key *k, uint64_t i, int64_t *out);
/* The same for f32 and f64. */
NODISCARD bool gguf_arr_f64(const struct gguf_key *k, uint64_t i, double *out);

/* Walks a string array in order: *off starts at 0. False at the end.  (The reader has checked that
 * every length fits.) */
NODISCARD bool gguf_arr_next_str(const struct gguf_key *k, uint64_t *off, struct str *out);

/* Tells the kernel that this tensor's mapped pages will not be read again soon (after repacking). */
void gguf_drop_tensor(const struct gguf *g, const struct gguf_tensor *t);
/* The same for bytes [off, off + n) of it. */
void gguf_drop_bytes(const struct gguf *g, const struct gguf_tensor *t, uint64_t off, uint64_t n);

#endif
