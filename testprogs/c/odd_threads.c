/*
 * Threads that pthread_create did not make; the last argument says which:
 *   untraced   clone(2) with CLONE_UNTRACED: a tracer is not told of it
 *   bare       clone(2) without CLONE_SETTLS: it has the thread pointer of the thread that made it
 *   parent     a process made with CLONE_PARENT (its parent is the program's parent), which ends at once
 *   crowd      5,000 threads that sleep (or as many as there may be) beside the one that works
 *
 *   odd_threads N MODE, odd_threads wait MODE
 *
 * f0 = serve: called by the main thread and, at the same time, by the odd one. The result counts.
 */
#include "work.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

static char stack[64 << 10] __attribute__((aligned(16)));
static volatile int ended, begun, stop;
static volatile uint64_t odd_sum;

FUNCTION uint64_t lookup(uint64_t key)
{
    spin_us(20);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return lookup(key) + 1;
}

/* No library function, no stack protector: the thread may have none of what those need. */
static int odd_thread(void *unused)
{
    (void)unused;
    uint64_t sum = 0;
    begun = 1;
    for (uint64_t key = 0; key < 2000; key++)
        sum = mix(sum ^ serve(key));
    odd_sum = sum;
    __asm__ volatile("" ::: "memory");
    ended = 1;
    return 0;
}

static void *sleep_long(void *unused)
{
    while (!stop)
        usleep(200000);
    return unused;
}

static int ends_at_once(void *unused)
{
    (void)unused;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    const char *mode = argv[--argc];
    struct run run = parse_run(argc, argv, 4000);
    int threads = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    if (strcmp(mode, "untraced") == 0) {
        threads |= CLONE_UNTRACED;
    } else if (strcmp(mode, "crowd") == 0) {
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 16 << 10);
        pthread_t thread;
        for (int i = 0; i < 5000 && pthread_create(&thread, &small, sleep_long, NULL) == 0; i++)
            pthread_detach(thread);
        ended = 1;
    } else if (strcmp(mode, "parent") == 0) {
        threads = CLONE_PARENT;
        for (int i = 0; i < 20; i++)
            clone(ends_at_once, stack + sizeof stack - 64, threads, NULL);
        ended = 1;
    } else if (strcmp(mode, "bare") != 0) {
        return 2;
    }
    if (!ended && clone(odd_thread, stack + sizeof stack - 64, threads, NULL) < 0)
        return 77;
    int status = run_ops(run, serve);
    while (!ended)
        usleep(1000);
    printf("odd=%016llx\n", (unsigned long long)odd_sum);
    fflush(stdout);
    _exit(status);
}
