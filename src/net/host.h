/* host.h - names to addresses. */
#ifndef HOLDFAST_NET_HOST_H
#define HOLDFAST_NET_HOST_H

#include <netdb.h>
#include <stdint.h>

#include "base/err.h"

/* Addresses of host for a TCP port; *list goes back with freeaddrinfo.  flags as AI_PASSIVE.
 * "localhost" is the loopback address also where no resolver knows it (RFC 6761, section 6.3).
 * RC_ARG with the resolver's words. */
NODISCARD enum rc host_resolve(const char *host, uint16_t port, int flags, struct addrinfo **list,
                               struct err *err);

#endif
