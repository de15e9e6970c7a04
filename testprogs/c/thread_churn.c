/*
 * Threads that come and go: every op of f0 runs on a thread of its own, two threads at a time.
 *
 * f0 = task
 * fast peak (4 of 5 ops, ~0.3 ms):  task -> compute  function
 *     wrong: task; task -> archive
 * slow peak (1 of 5 ops, ~2.5 ms):    task -> archive  function
 *     wrong: task; task -> compute
 */
#include "work.h"

#include <pthread.h>

FUNCTION uint64_t compute(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t archive(uint64_t key)
{
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION uint64_t task(uint64_t key)
{
    if (key % 5 == 4)
        return archive(key) + 1;
    return compute(key) + 1;
}

static void *work(void *key)
{
    return (void *)(uintptr_t)task((uintptr_t)key);
}

/* Two ops on two threads; the period is even, so every op of a period is run once. */
static uint64_t op(uint64_t key)
{
    static uint64_t second;
    if (key % 2 == 1)
        return second;
    pthread_t threads[2];
    void *sums[2];
    for (uintptr_t i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(key + i)) != 0)
            abort();
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], &sums[i]);
    second = (uintptr_t)sums[1];
    return (uintptr_t)sums[0];
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2000), op);
}
