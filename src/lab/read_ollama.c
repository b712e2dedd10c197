/* read_ollama.c - Ollama's own runners, in slog form.  Where it starts llama-server, that server's lines
 * stand in Ollama's log as they are and are read as llama.cpp's.
 *
 *   msg="loading cache slot" id=0 cache=11060 prompt=4539 used=2560 remaining=1979   (OLLAMA_DEBUG=1)
 *   msg="cache hit" total=23169 matched=21742 cached=16383 left=6786                 (MLX runner)
 */
#include "lab/line.h"

#define O ENG_OLLAMA

static const struct shape slog_shapes[] = {
    {LINE_TURN, "loading cache slot", O, 20241030, 0, false},
    {LINE_TURN, "cache hit", O, 20260301, 0, false},
    {LINE_TURN, "cache miss", O, 20260301, 0, false},
    {LINE_TURN, "Cache hit", O, 20260101, 20260601, false},
    {LINE_TURN, "Cache miss", O, 20260101, 20260601, false},
    {LINE_PROGRESS, "Prompt processing progress", O, 20260101, 0, false},
    {LINE_CLEAR, "failed to restore cache, freeing all caches", O, 20260301, 0, false},
    {LINE_BEGIN, "llama runner started", O, 0, 0, false},
    {LINE_BEGIN, "llama-server started", O, 20260701, 0, false},
    {LINE_BEGIN, "mlx runner is ready", O, 20260101, 0, false},
    {LINE_NOISE, "waiting for", O, 0, 0, false},
    {LINE_NOISE, "ServeHTTP", O, 0, 0, false},
    {LINE_NOISE, "server config", O, 0, 0, false},
    {LINE_NOISE, "template selection", O, 0, 0, false},
};

static const struct shape raw_shapes[] = {
    {LINE_HTTP, "[GIN] ", O, 0, 0, false},
};

const struct dialect dialect_ollama[2] = {
    {FORM_SLOG, slog_shapes, COUNT_OF(slog_shapes)},
    {FORM_RAW, raw_shapes, COUNT_OF(raw_shapes)},
};
