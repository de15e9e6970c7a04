/*
 * A lock that is waited for by spinning: the waiting is the function's own time, and no system call's. The holder takes the lock
 * before the op begins.
 *
 * f0 = update
 * fast peak (4 of 5 ops, ~0.3 ms):       update -> compute    function
 *     wrong: update; update -> take_lock
 * slow peak (1 of 5 ops, ~2.5 to 6 ms):  update -> take_lock  function
 *     wrong: update; update -> compute
 */
#include "work.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static atomic_int locked, wanted, waits;

static void *holder(void *unused)
{
    (void)unused;
    for (;;) {
        while (!atomic_load(&wanted))
            sched_yield();
        atomic_store(&locked, 1);
        atomic_store(&wanted, 0);
        while (!atomic_load(&waits))
            sched_yield();
        spin_us(2500);
        atomic_store(&locked, 0);
    }
    return NULL;
}

FUNCTION uint64_t compute(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION void take_lock(void)
{
    while (atomic_load(&locked)) {
        atomic_store(&waits, 1);
        __builtin_ia32_pause();
    }
    atomic_store(&waits, 0);
}

FUNCTION uint64_t update(uint64_t key)
{
    take_lock();
    return compute(key) + 1;
}

static uint64_t op(uint64_t key)
{
    if (key % 5 == 4) {
        atomic_store(&wanted, 1);
        while (atomic_load(&wanted))
            sched_yield();
    }
    return update(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1200);
    pthread_t thread;
    if (pthread_create(&thread, NULL, holder, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
