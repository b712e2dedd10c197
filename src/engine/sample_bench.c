/* How long a token takes to choose from a vocabulary of 248,320, by chain and by how peaked the logits
 * are.  One thread; medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hist.h"
#include "base/mem.h"
#include "engine/sample.h"

enum { N_VOCAB = 248320, ROUNDS = 30 };

static double median_ms(struct sample_room *r, const struct sampling *p, const float *logits,
                        float *work, uint32_t n_probs, const uint64_t *mask)
{
    token history[1000];
    struct rng rng = {2};
    for (uint32_t i = 0; i < COUNT_OF(history); i++)
        history[i] = (token)rng_below(&rng, N_VOCAB);
    struct sampler s;
    sampler_init(&s, p, 1, NULL, 0);
    s.mask = mask;
    s.n_mask = N_VOCAB;
    struct prob probs[16];
    struct hist h;
    hist_init(&h);
    for (int i = 0; i < ROUNDS; i++) {
        memcpy(work, logits, N_VOCAB * sizeof *work);
        const uint64_t start = clock_mono_ns();
        sampler_next(&s, r, work, history, COUNT_OF(history), n_probs ? probs : NULL, n_probs);
        hist_add(&h, (double)(clock_mono_ns() - start) * 1e-6);
    }
    const double ms = hist_quantile(&h, 0.5);
    hist_release(&h);
    return ms;
}

int main(void)
{
    struct sample_room *r;
    if (sample_room_new(N_VOCAB, NULL, 0, NULL, 0, &r, NULL))
        return 1;
    struct sampling usual, greedy, top_p, all, penalties;
    sampling_defaults(&usual);
    greedy = top_p = all = penalties = usual;
    greedy.temperature = 0;
    top_p.top_k = 0;
    top_p.min_p = 0;
    all.top_k = 0;
    all.top_p = 1;
    all.min_p = 0;
    penalties.repeat_penalty = 1.1f;
    penalties.repeat_last_n = -1;
    static uint64_t few[(N_VOCAB + 63) / 64], most[(N_VOCAB + 63) / 64];
    struct rng draw = {3};
    for (uint32_t i = 0; i < N_VOCAB; i++)
        if (rng_below(&draw, 20))
            most[i / 64] |= UINT64_C(1) << i % 64;
    for (uint32_t i = 0; i < 30; i++)
        few[i * 100] |= 1;
    const struct {
        const char *name;
        const struct sampling *p;
        uint32_t n_probs;
        const uint64_t *mask;
    } chains[] = {{"greedy", &greedy, 0, NULL},
                  {"default (top-k 40, top-p, min-p)", &usual, 0, NULL},
                  {"default, penalties over 1000 tokens", &penalties, 0, NULL},
                  {"default, 10 log-probabilities", &usual, 10, NULL},
                  {"default, a mask of 30 tokens", &usual, 0, few},
                  {"default, a mask of 95 % (in a string)", &usual, 0, most},
                  {"top-p 0.95 alone", &top_p, 0, NULL},
                  {"temperature alone", &all, 0, NULL}};
    float *logits = mem_alloc(N_VOCAB * sizeof *logits), *work = mem_alloc(N_VOCAB * sizeof *work);
    printf("%-38s %10s %10s\n", "ms per token, vocabulary 248320", "peaked", "flat");
    for (size_t c = 0; c < COUNT_OF(chains); c++) {
        printf("%-38s", chains[c].name);
        for (int flat = 0; flat < 2; flat++) {
            struct rng rng = {1};
            for (uint32_t i = 0; i < N_VOCAB; i++)
                logits[i] = (float)(rng_normal(&rng) * (flat ? 1 : 4));
            for (uint32_t i = 0; !flat && i < 20; i++)
                logits[rng_below(&rng, N_VOCAB)] = (float)(30 - i);
            printf(" %10.3f",
                   median_ms(r, chains[c].p, logits, work, chains[c].n_probs, chains[c].mask));
        }
        printf("\n");
    }
    mem_free(logits);
    mem_free(work);
    sample_room_free(r);
    return 0;
}
