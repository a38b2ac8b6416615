/*
 * topkd_fd.h - handing descriptors of memory between a client and a worker.
 *
 * Memory of CUDA's virtual memory management (PyTorch's expandable segments are such) has no IPC
 * handle; it travels as file descriptors, which no message carries. So beside the socket
 * "<path>.sock" of a CUDA worker lies a second one, "<path>.fds", of type SOCK_SEQPACKET. One
 * connection is one hand-over, in one of two directions:
 *
 *   offer   The client sends one or more fd_packet of kind FD_OFFER, each with its descriptors
 *           (SCM_RIGHTS) in the order of the memory, and gets one fd_answer with a ticket. The
 *           ticket goes into RegisterRegion as the handle of WIRE_MEMORY_CUDA_FD. It is good once,
 *           for the process that sent the descriptors, and for FD_TICKET_MS.
 *   fetch   Hello gave the client memory of kind WIRE_MEMORY_CUDA_FD: the client sends one
 *           fd_packet of kind FD_FETCH with that handle as the ticket and gets one fd_answer with
 *           the descriptor of a memory file to map. Good for the process that said hello, while its
 *           session lives. A descriptor reaches a client in any namespace, a name does not.
 *
 * Same machine, native layout; magic and version tell a foreign peer.
 */
#ifndef TOPKD_FD_H
#define TOPKD_FD_H

#include "topkd_rights.h"

#include <stdint.h>

#define FD_SOCKET_SUFFIX ".fds" /* in place of ".sock" */
#define FD_MAGIC 0x64464b54u    /* "TKFd" */
#define FD_VERSION 1u
#define FD_PACKET_FDS_MAX RIGHTS_MAX
/* Descriptors a ticket: 20 MiB chunks, as PyTorch maps large segments, up to 20 GiB. */
#define FD_TICKET_FDS_MAX 1024u
#define FD_TICKET_SIZE 16u  /* random bytes */
#define FD_TICKET_MS 10000u /* choice: registration follows at once */
#define FD_ANSWER_TEXT_SIZE 200u

enum fd_kind { FD_OFFER = 1, FD_FETCH = 2 };

struct fd_packet {
    uint32_t magic, version;
    uint32_t kind;    /* enum fd_kind */
    uint32_t num_fds; /* offer: that travel with this packet, 1 ... FD_PACKET_FDS_MAX */
    uint32_t is_last; /* offer: 1, the answer comes next */
    uint32_t reserved;
    uint8_t ticket[FD_TICKET_SIZE];         /* fetch */
    uint64_t size_bytes[FD_PACKET_FDS_MAX]; /* offer: of the allocation behind each descriptor */
};

struct fd_answer {
    uint32_t magic, version;
    uint32_t status; /* enum topkd_status */
    uint32_t num_fds;
    uint8_t ticket[FD_TICKET_SIZE];   /* of an offer that is TOPKD_OK */
    char detail[FD_ANSWER_TEXT_SIZE]; /* when the status is not TOPKD_OK */
};

#endif
