/*
 * A lock that is waited for by letting others run: to the kernel who does that could have gone on, as one that was preempted, but
 * nobody took its processor away. The holder has the same processor.
 *
 * f0 = update
 * fast peak (4 of 5 ops, ~0.3 ms):           update -> compute                       function
 *     wrong: update; update -> take_lock; update -> take_lock -> … -> sched_yield; update -> (preemption)
 * slow peak (1 of 5 ops, ~2.5 to 6.5 ms):    update -> take_lock -> … -> sched_yield  syscall
 *     wrong: update; update -> compute; update -> (preemption)
 */
#include "work.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

static atomic_int locked;
static sem_t wanted;

static void *holder(void *unused)
{
    for (;;) {
        while (sem_wait(&wanted) != 0)
            ;
        spin_us(2500);
        atomic_store(&locked, 0);
    }
    return unused;
}

FUNCTION uint64_t compute(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION void take_lock(void)
{
    while (atomic_load(&locked))
        sched_yield();
}

FUNCTION uint64_t update(uint64_t key)
{
    take_lock();
    return compute(key) + 1;
}

static uint64_t op(uint64_t key)
{
    if (key % 5 == 4) {
        atomic_store(&locked, 1);
        sem_post(&wanted);
    }
    return update(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1200);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    pthread_t thread;
    if (sem_init(&wanted, 0, 0) != 0 || sched_setaffinity(0, sizeof one, &one) != 0
        || pthread_create(&thread, NULL, holder, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
