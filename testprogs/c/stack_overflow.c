/*
 * Depth: f0 calls itself 65 deep in every op, 10,000 deep in the first, and until its thread's stack
 * overflows once a period; the SIGSEGV is handled on an alternate stack and left by siglongjmp.
 *
 * f0 = sink: peaks do not matter here, an overflown op is ended otherwise.
 */
#include "work.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

static struct run run;
static sigjmp_buf out;
static char alternate[64 << 10];

FUNCTION uint64_t sink(uint64_t depth)
{
    volatile char room[400];
    room[depth % sizeof room] = (char)depth;
    uint64_t below = depth == 0 ? 1 : sink(depth - 1);
    return mix(below) + (unsigned char)room[depth % sizeof room];
}

static void on_overflow(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

static uint64_t op(uint64_t key)
{
    if (key == 19) {
        if (sigsetjmp(out, 1) == 0)
            return sink(UINT64_MAX);
        return 1234;
    }
    return sink(65);
}

/* On a thread with a stack of 256 KiB, for an overflow after some hundred frames. */
static void *work(void *unused)
{
    (void)unused;
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    sigaltstack(&stack, NULL);
    return (void *)(intptr_t)run_ops(run, op);
}

int main(int argc, char **argv)
{
    run = parse_run(argc, argv, 100);
    struct sigaction action = {.sa_handler = on_overflow, .sa_flags = SA_ONSTACK};
    sigaction(SIGSEGV, &action, NULL);
    printf("deep=%016llx\n", (unsigned long long)sink(10000));
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    void *status;
    if (pthread_create(&thread, &attributes, work, NULL) != 0)
        return 2;
    pthread_join(thread, &status);
    return (int)(intptr_t)status;
}
