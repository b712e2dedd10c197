#include "net/host.h"

#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>

enum rc host_resolve(const char *host, uint16_t port, int flags, struct addrinfo **list,
                     struct err *err)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    *list = NULL;
    int e = getaddrinfo(host, service, &hints, list);
    if (e && strcasecmp(host, "localhost") == 0)
        e = getaddrinfo("127.0.0.1", service, &hints, list);
    return e ? err_set(err, RC_ARG, "host %s: %s", host, gai_strerror(e)) : RC_OK;
}
