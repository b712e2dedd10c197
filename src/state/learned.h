/* learned.h - what a cache has learned, in a file beside its segments: bytes that mean nothing here, under a checksum.
 *
 * docs/formats/cache-dir.md has header and content.
 */
#ifndef HOLDFAST_STATE_LEARNED_H
#define HOLDFAST_STATE_LEARNED_H

#include "base/err.h"

enum { LEARNED_MAX_BYTES = 64 * MIB }; /* of content; what is larger is no such file */

/* Replaces path by p [n], n <= LEARNED_MAX_BYTES: afterwards it holds that, or what it held before.  RC_IO, RC_NOMEM,
 * RC_LIMIT. */
NODISCARD enum rc learned_write(const char *path, uint64_t fingerprint, const void *p, uint64_t n,
                                struct err *err);
/* The content into *out (mem_free), *n bytes; NULL and RC_OK when there is no file.
 *   RC_UNSUPPORTED  not such a file, of another fingerprint, or of a newer format
 *   RC_FORMAT       damaged, or not written to its end
 *   RC_IO, RC_NOMEM */
NODISCARD enum rc learned_read(const char *path, uint64_t fingerprint, uint8_t **out, uint64_t *n,
                               struct err *err);

#endif
