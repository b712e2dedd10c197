/* read_pxa.c - where PXA's server words a line differently from ik_llama.cpp. */
#include "lab/line.h"

#define P ENG_PXA

static const struct shape slot_shapes[] = {
    {LINE_RESTORE, "restored HYBRID context checkpoint took {ms} ms (state_pos {_} -> {pos_max}, ",
     P, 0, 0, true},
};

static const struct shape kv_shapes[] = {
    {LINE_PICK, "selected slot by cheapest cache", P, 0, 0, false},
    {LINE_NOISE, "PXA_SLOT_FORK: forked prefix from a live slot", P, 0, 0, false},
    {LINE_NOISE, "no slot is available - task deferred", P, 0, 0, false},
    {LINE_NOISE, "prompt-fair: short prompt admitted", P, 0, 0, false},
};

static const struct shape raw_shapes[] = {
    {LINE_FORCE, "PXA_SWA_TRUNCATE_GUARD: forcing full re-process (cache={held}, keep={n_past}", P,
     0, 0, false},
    {LINE_NOISE, "PXA kv span:", P, 0, 0, false},
    {LINE_NOISE, "PXA shift trim:", P, 0, 0, false},
    {LINE_NOISE, "PXA_", P, 0, 0, false},
    {LINE_NOISE, "context checkpoints: {_} per slot", P, 0, 0, false},
    {LINE_NOISE, "prompt cache is off by default for a model with recurrent state", P, 0, 0, false},
};

const struct dialect dialect_pxa[3] = {
    {FORM_SLOT, slot_shapes, COUNT_OF(slot_shapes)},
    {FORM_KV, kv_shapes, COUNT_OF(kv_shapes)},
    {FORM_RAW, raw_shapes, COUNT_OF(raw_shapes)},
};
