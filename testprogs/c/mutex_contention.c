/*
 * A mutex that another thread holds: the slow ops wait in futex. The holder is told to take the
 * mutex before the op begins, the op begins when it has it, and it works on when the op waits.
 *
 * f0 = update
 * fast peak (4 of 5 ops, ~0.3 ms):  update -> compute                             function
 *     wrong: update; update -> lock_table -> … -> futex
 * slow peak (1 of 5 ops, ~2.5 to 6 ms):    update -> lock_table -> … -> futex            syscall
 *     wrong: update; update -> lock_table; update -> compute
 *
 *   woken by the thread "holder", in holder -> pthread_mutex_unlock
 */
#include "work.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/prctl.h>

static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static sem_t take, taken;

/* glibc's mutex begins with its futex word, which is 2 as soon as somebody waits. */
static int has_waiter(void)
{
    return *(volatile int *)&table == 2;
}

static void *holder(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "holder");
    for (;;) {
        while (sem_wait(&take) != 0)
            ;
        pthread_mutex_lock(&table);
        sem_post(&taken);
        while (!has_waiter())
            sched_yield();
        spin_us(2500);
        pthread_mutex_unlock(&table);
    }
    return NULL;
}

FUNCTION uint64_t compute(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION void lock_table(void)
{
    pthread_mutex_lock(&table);
    NO_TAIL_CALL();
}

FUNCTION uint64_t update(uint64_t key)
{
    lock_table();
    pthread_mutex_unlock(&table);
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
