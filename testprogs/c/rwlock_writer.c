/*
 * A lock for readers and writers: readers wait while a writer has it. The writer takes it before the op begins.
 *
 * f0 = look_up
 * fast peak (4 of 5 ops, ~0.3 ms):       look_up -> search                 function
 *     wrong: look_up; look_up -> lock_for_reading
 * slow peak (1 of 5 ops, ~2.5 to 6 ms):  look_up -> lock_for_reading -> … -> futex  syscall
 *     wrong: look_up; look_up -> search; look_up -> lock_for_reading
 */
#include "work.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/prctl.h>

static pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;
static sem_t take, taken;

static void *writer(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "writer");
    for (;;) {
        while (sem_wait(&take) != 0)
            ;
        pthread_rwlock_wrlock(&table);
        sem_post(&taken);
        spin_us(3500);
        pthread_rwlock_unlock(&table);
    }
    return NULL;
}

FUNCTION uint64_t search(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION void lock_for_reading(void)
{
    pthread_rwlock_rdlock(&table);
    NO_TAIL_CALL();
}

FUNCTION uint64_t look_up(uint64_t key)
{
    lock_for_reading();
    uint64_t found = search(key);
    pthread_rwlock_unlock(&table);
    return found + 1;
}

static uint64_t op(uint64_t key)
{
    if (key % 5 == 4) {
        sem_post(&take);
        while (sem_wait(&taken) != 0)
            ;
    }
    return look_up(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1200);
    sem_init(&take, 0, 0);
    sem_init(&taken, 0, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, writer, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
