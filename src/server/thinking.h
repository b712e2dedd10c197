/* thinking.h - how many tokens of reasoning a request allows.
 *
 * The first that is there: thinking_budget_tokens, Anthropic's thinking.budget_tokens, an effort that the
 * template does not know itself, the server's --reasoning-budget.  -1 is no limit; 0 asks the template for
 * none and ends at once what is opened all the same.
 */
#ifndef HOLDFAST_SERVER_THINKING_H
#define HOLDFAST_SERVER_THINKING_H

#include "server/talk.h"

/* Of requests that do not say. */
int32_t thinking_default(const struct server *s);
/* Before rendering: t->effort becomes a budget, a budget of 0 the template's enable_thinking. */
NODISCARD enum rc thinking_settle(struct talk *t, struct err *err);
/* After rendering: t->p.think, which is what the job is told. */
NODISCARD enum rc thinking_limit(struct talk *t, struct err *err);

#endif
