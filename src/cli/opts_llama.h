/* opts_llama.h - llama-server's options that mean nothing here, each with the reason: those that are
 * accepted, so that scripts written for it go on working, and those that are refused because somebody
 * would miss what they ask for. */
#ifndef HOLDFAST_CLI_OPTS_LLAMA_H
#define HOLDFAST_CLI_OPTS_LLAMA_H

#include "cli/opts.h"

extern const struct opt llama_opts[];
extern const size_t n_llama_opts;

#endif
