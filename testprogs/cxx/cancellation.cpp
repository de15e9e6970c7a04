/*
 * Threads that end inside f0: by pthread_exit, by deferred cancellation in a blocked read, and by
 * asynchronous cancellation in a loop; cleanup handlers and a destructor are on the path.
 *
 * f0 = serve
 * only peak (3 of 5 ops, those that return, ~0.3 ms):  serve -> compute  function
 *     wrong: serve
 */
#include "work.h"

#include <pthread.h>

static int never[2], reached[2];
static uint64_t cleaned;

struct Guard {
    ~Guard() { cleaned += 10; }
};

FUNCTION uint64_t compute(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

/* Tells the thread that will cancel this one that it is in f0. */
FUNCTION void say_reached()
{
    char byte = 'x';
    if (write(reached[1], &byte, 1) != 1)
        abort();
}

/* In a function without a destructor: a cleanup pad covers calls only, not any instruction. */
FUNCTION void turn_for_ever()
{
    int old;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    say_reached();
    for (;;)
        __asm__ volatile("" ::: "memory");
}

FUNCTION void leave(uint64_t key)
{
    Guard guard;
    char byte;
    if (key % 3 == 0)
        pthread_exit(NULL);
    if (key % 3 == 1) {
        say_reached();
        if (read(never[0], &byte, 1) >= 0)
            abort();
    }
    turn_for_ever();
}

static void clean(void *)
{
    cleaned += 1000;
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = compute(key);
    if (key % 5 >= 3) {
        pthread_cleanup_push(clean, NULL);
        leave(key);
        pthread_cleanup_pop(0);
    }
    return sum + 1;
}

static void *work(void *key)
{
    serve((uintptr_t)key);
    return (void *)1;
}

static uint64_t op(uint64_t key)
{
    if (key % 5 < 3)
        return serve(key);
    cleaned = 0;
    pthread_t thread;
    void *result;
    char byte;
    if (pthread_create(&thread, NULL, work, (void *)(uintptr_t)key) != 0)
        abort();
    if (key % 3 != 0) {
        while (read(reached[0], &byte, 1) != 1)
            ;
        pthread_cancel(thread);
    }
    pthread_join(thread, &result);
    return (uint64_t)(intptr_t)result + cleaned;
}

int main(int argc, char **argv)
{
    if (pipe(never) != 0 || pipe(reached) != 0)
        return 2;
    return run_ops(parse_run(argc, argv, 800), op);
}
