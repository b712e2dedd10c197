/* read_lmstudio.c - what LM Studio's own engines print at the debug level.  Its llama.cpp runtime's slot
 * lines stand below a "date [DEBUG]" line and are read as llama.cpp's.
 *
 *   [coordinator][INFO]: Prompt cache restore: cached_tokens=37464 uncached_tokens=19 ...   (MLX)
 *   Cache reuse summary: 939/939 of prompt (100%), 939 prefix, 0 non-prefix                 (until 2025)
 */
#include "lab/line.h"

#define M ENG_LMSTUDIO

static const struct shape raw_shapes[] = {
    {LINE_TURN, "Prompt cache restore: cached_tokens={n_past} uncached_tokens={n_tokens}", M,
     20260401, 0, false},
    {LINE_TURN, "Cache reuse summary: {n_past}/{n_prompt} of prompt", M, 20250101, 20251231, false},
    {LINE_NOISE, "Total prompt tokens: ", M, 20250101, 20251231, false},
    {LINE_NOISE, "Prompt tokens to decode: ", M, 20250101, 20251231, false},
    {LINE_PROGRESS, "Prompt processing progress: {sim}%", M, 0, 0, false},
    {LINE_NOISE, "Running chat completion on conversation with ", M, 0, 0, false},
    {LINE_NOISE, "Streaming response", M, 0, 0, false},
    {LINE_NOISE, "Generated prediction:", M, 0, 0, false},
    {LINE_CANCEL, "Client disconnected. Stopping generation", M, 0, 0, false},
    {LINE_NOISE, "cache_store: ", M, 20260401, 0, false},
};

const struct dialect dialect_lmstudio[1] = {
    {FORM_RAW, raw_shapes, COUNT_OF(raw_shapes)},
};
