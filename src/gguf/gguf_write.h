/* gguf_write.h - write a GGUF v3 file: keys first, then tensor infos, then data, streaming.
 *
 * For the project's own model maker and for tests.  Order of calls: keys, then gguf_write_tensor for
 * each tensor (info only), then gguf_write_data in the same order with exactly the bytes announced,
 * in as many pieces as the caller likes.
 */
#ifndef HOLDFAST_GGUF_GGUF_WRITE_H
#define HOLDFAST_GGUF_GGUF_WRITE_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"

struct gguf_writer;

NODISCARD enum rc gguf_writer_open(const char *path, struct gguf_writer **out, struct err *err);
void gguf_write_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_write_f32(struct gguf_writer *w, const char *key, float v);
void gguf_write_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_write_str(struct gguf_writer *w, const char *key, const char *v);
void gguf_write_arr_i32(struct gguf_writer *w, const char *key, const int32_t *v, uint64_t n);
void gguf_write_arr_str(struct gguf_writer *w, const char *key, const struct str *v, uint64_t n);
void gguf_write_tensor(struct gguf_writer *w, const char *name, enum dtype type, uint32_t n_dims,
                       const uint64_t *ne);
/* False once anything has failed: the rest may be skipped, gguf_writer_close tells why. */
bool gguf_write_data(struct gguf_writer *w, const void *p, uint64_t n);
/* The first error of any call above, or the final write; then path holds what it held before.  Frees
 * w. */
NODISCARD enum rc gguf_writer_close(struct gguf_writer *w, struct err *err);
/* Ends without a file; path holds what it held before. */
void gguf_writer_abandon(struct gguf_writer *w);

#endif
