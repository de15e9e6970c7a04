/*
 * A file that is locked before it is written to: another one has the lock now and then, and keeps it for some time
 * when it is waited for.
 *
 * f0 = append
 * fast peak (4 of 5 ops, ~0.3 ms):         append -> format                   function
 *     wrong: append; append -> lock_file; append -> lock_file -> … -> flock
 * slow peak (1 of 5 ops, ~2.5 to 6.5 ms):  append -> lock_file -> … -> flock  syscall
 *     wrong: append; append -> format; append -> lock_file
 */
#include "work.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/file.h>
#include <sys/mman.h>

static int ours, theirs;
static sem_t take, taken;
static volatile int waits;

static void *other(void *unused)
{
    for (;;) {
        while (sem_wait(&take) != 0)
            ;
        flock(theirs, LOCK_EX);
        sem_post(&taken);
        while (!waits)
            sched_yield();
        spin_us(3000);
        flock(theirs, LOCK_UN);
    }
    return unused;
}

FUNCTION uint64_t format(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION void lock_file(void)
{
    while (flock(ours, LOCK_EX) != 0)
        ;
    NO_TAIL_CALL();
}

FUNCTION uint64_t append(uint64_t key)
{
    waits = 1;
    lock_file();
    uint64_t line = format(key);
    flock(ours, LOCK_UN);
    return line + 1;
}

static uint64_t op(uint64_t key)
{
    if (key % 5 == 4) {
        waits = 0;
        sem_post(&take);
        while (sem_wait(&taken) != 0)
            ;
    }
    return append(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1200);
    char path[64];
    pthread_t thread;
    sem_init(&take, 0, 0);
    sem_init(&taken, 0, 0);
    ours = memfd_create("log", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ours);
    theirs = open(path, O_RDWR);
    if (theirs < 0 || pthread_create(&thread, NULL, other, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
