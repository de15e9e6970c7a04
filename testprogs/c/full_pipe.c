/*
 * A pipe to a reader that takes its time: where there is room, a message is gone at once; where the pipe is full, who writes waits
 * until something has been read.
 *
 * f0 = send_message
 * fast peak (4 of 5 ops, ~0.3 ms):         send_message -> pack               function
 *     wrong: send_message; send_message -> put; send_message -> put -> … -> write
 * slow peak (1 of 5 ops, ~2.5 to 6.5 ms):  send_message -> put -> … -> write  syscall
 *     wrong: send_message; send_message -> pack; send_message -> put
 */
#include "work.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/prctl.h>

enum { ROOM = 65536, SIZE = ROOM / 4 };

static int ends[2];
static char message[SIZE];
static sem_t is_full;
static volatile int waits;

/* Empties the pipe a while after it has become full. */
static void *reader(void *unused)
{
    static char read_last[ROOM];
    prctl(PR_SET_NAME, "reader");
    for (;;) {
        while (sem_wait(&is_full) != 0)
            ;
        while (!waits)
            sched_yield();
        spin_us(3000);
        waits = 0;
        for (ssize_t left = ROOM, got; left > 0; left -= got)
            if ((got = read(ends[0], read_last, (size_t)left)) <= 0)
                abort();
    }
    return unused;
}

FUNCTION uint64_t pack(uint64_t key)
{
    spin_us(300);
    message[0] = (char)key;
    return mix(key);
}

FUNCTION void put(void)
{
    if (write(ends[1], message, SIZE) != SIZE)
        abort();
}

FUNCTION uint64_t send_message(uint64_t key)
{
    uint64_t packed = pack(key);
    waits = key % 5 == 4;
    put();
    return packed + 1;
}

static uint64_t op(uint64_t key)
{
    /* After four messages the pipe is full; the fifth waits, and is taken out as the first is by the next round. */
    if (key % 5 == 4)
        sem_post(&is_full);
    uint64_t sent = send_message(key);
    if (key % 5 == 4 && read(ends[0], message, SIZE) != SIZE)
        abort();
    return sent;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1200);
    pthread_t thread;
    sem_init(&is_full, 0, 0);
    if (pipe(ends) != 0 || fcntl(ends[1], F_SETPIPE_SZ, ROOM) != ROOM
        || pthread_create(&thread, NULL, reader, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
