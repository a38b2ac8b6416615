/*
 * fd_socket.h - the client's end of a worker's side socket (topkd_fd.h).
 */
#ifndef TOPKD_CLIENT_FD_SOCKET_H
#define TOPKD_CLIENT_FD_SOCKET_H

#include "topkd_fd.h"
#include "topkd_wire.h"

#include <stdint.h>

/*
 * Hands descriptors over to the worker at `url` ("ipc:///<path>.sock") and gets the ticket for
 * them. The caller keeps its copies. Blocks, two seconds at most. TOPKD_E_UNREACHABLE: nobody there
 * or no answer; TOPKD_E_LIMIT: more than FD_TICKET_FDS_MAX; TOPKD_E_BUSY and others as the worker
 * answers.
 */
enum topkd_status fd_socket_offer(const char *url, const int *fds, const uint64_t *sizes_bytes,
                                  uint32_t num_fds, uint8_t ticket_p[FD_TICKET_SIZE], char *detail);

/* Fetches the descriptor that waits under a ticket; the caller closes it. Blocks likewise. */
enum topkd_status fd_socket_fetch(const char *url, const uint8_t ticket[FD_TICKET_SIZE], int *fd_p,
                                  char *detail);

#endif
