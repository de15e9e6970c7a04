/*
 * A lock of the program's own that another thread holds: both sleep and wake by the C library's syscall(), so that the
 * call that wakes is one of those that are measured.
 *
 * f0 = update
 * fast peak (4 of 5 ops, ~0.3 ms):  update -> compute                             function
 *     wrong: update; update -> lock -> syscall -> futex
 * slow peak (1 of 5 ops, ~2.5 to 6 ms):    update -> lock -> syscall -> futex     syscall
 *     wrong: update; update -> lock; update -> lock -> syscall; update -> compute
 *
 *   woken by the thread "holder", in holder -> unlock -> syscall
 */
#include "work.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int table;
static sem_t take, taken;

static int has_waiter(void)
{
    return *(volatile int *)&table == 2;
}

FUNCTION void lock(void)
{
    if (!__sync_bool_compare_and_swap(&table, 0, 1))
        while (__atomic_exchange_n(&table, 2, __ATOMIC_ACQUIRE) != 0)
            syscall(SYS_futex, &table, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

FUNCTION void unlock(void)
{
    if (__atomic_exchange_n(&table, 0, __ATOMIC_RELEASE) == 2)
        syscall(SYS_futex, &table, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    NO_TAIL_CALL();
}

static void *holder(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "holder");
    for (;;) {
        while (sem_wait(&take) != 0)
            ;
        lock();
        sem_post(&taken);
        while (!has_waiter())
            sched_yield();
        spin_us(2500);
        unlock();
    }
    return NULL;
}

FUNCTION uint64_t compute(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t update(uint64_t key)
{
    lock();
    unlock();
    return compute(key) + 1;
}

static uint64_t op(uint64_t key)
{
    if (key % 5 == 4) {
        sem_post(&take);
        while (sem_wait(&taken) != 0)
            ;
    }
    return update(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1600);
    sem_init(&take, 0, 0);
    sem_init(&taken, 0, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, holder, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
