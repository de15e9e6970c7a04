/*
 * Two threads write without end to a pipe and to a socket, each call more than there is room for, and two others read: a stop
 * may cut each call after a part of its work. All bytes arrive once and in order, and each call returns how many it has
 * moved. The last line is "wrong=COUNT lost=COUNT".
 */
#include "work.h"

#include <pthread.h>
#include <sys/socket.h>

/* The byte at a position is its rest: blocks begin with the same one. */
enum { REST = 251, BLOCK = 1024 * REST, PART = 100000 };

struct way {
    int from, to, is_socket;
    uint64_t sent, received, wrong;
};

static volatile int ended;

FUNCTION uint64_t serve(uint64_t key)
{
    spin_us(20);
    return mix(key);
}

static void *writes(void *argument)
{
    static unsigned char block[BLOCK];
    struct way *way = argument;
    for (int i = 0; i < BLOCK; i++)
        block[i] = (unsigned char)(i % REST);
    while (!ended) {
        for (size_t done = 0; done < BLOCK;) {
            ssize_t moved = write(way->to, block + done, BLOCK - done);
            if (moved <= 0) {
                way->wrong++;
                continue;
            }
            done += (size_t)moved;
            way->sent += (uint64_t)moved;
        }
    }
    close(way->to);
    return NULL;
}

static void *reads(void *argument)
{
    struct way *way = argument;
    unsigned char *part = malloc(PART);
    for (;;) {
        ssize_t moved = way->is_socket ? recv(way->from, part, PART, MSG_WAITALL) : read(way->from, part, PART);
        if (moved == 0)
            break;
        if (moved < 0)
            way->wrong++;
        for (ssize_t i = 0; i < moved; i++)
            way->wrong += part[i] != way->received++ % REST;
    }
    free(part);
    return NULL;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 2000);
    pthread_t threads[4];
    int pipes[2], sockets[2];
    if (pipe(pipes) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
        return 2;
    struct way ways[] = {{pipes[0], pipes[1], 0, 0, 0, 0}, {sockets[0], sockets[1], 1, 0, 0, 0}};
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, i % 2 ? reads : writes, &ways[i / 2]) != 0)
            return 2;
    int status = run_ops(run, serve);
    ended = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("wrong=%llu lost=%lld\n", (unsigned long long)(ways[0].wrong + ways[1].wrong),
           (long long)(ways[0].sent + ways[1].sent - ways[0].received - ways[1].received));
    return status;
}
