/*
 * Threads that live for three ops each, and never two with the same thread pointer: every thread has a
 * stack, and with it thread-local storage, at an address that no other had.
 *
 * f0 = visit
 * one peak: visit -> step   function
 */
#include "work.h"

#include <pthread.h>
#include <sys/mman.h>

enum { OPS = 3, STACK = 256 << 10 };

FUNCTION uint64_t step(uint64_t key)
{
    spin_us(20);
    return mix(key);
}

FUNCTION uint64_t visit(uint64_t key)
{
    return step(key) + 1;
}

static void *work(void *key)
{
    uint64_t sum = 0;
    for (uintptr_t i = 0; i < OPS; i++)
        sum += visit((uintptr_t)key + i);
    return (void *)(uintptr_t)sum;
}

static uint64_t op(uint64_t key)
{
    static char *next;
    pthread_attr_t attributes;
    pthread_t thread;
    void *sum;
    if (next == NULL)
        next = mmap(NULL, (size_t)8 << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (next == MAP_FAILED || mprotect(next, STACK, PROT_READ | PROT_WRITE) != 0)
        abort();
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, next, STACK) != 0
        || pthread_create(&thread, &attributes, work, (void *)(uintptr_t)key) != 0)
        abort();
    pthread_join(thread, &sum);
    pthread_attr_destroy(&attributes);
    next += STACK;
    return (uintptr_t)sum;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 3000), op);
}
