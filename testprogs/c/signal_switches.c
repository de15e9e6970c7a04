/*
 * A signal handler that switches contexts: a timer has the thread go from one coroutine to the next in the middle of whatever
 * it does, of f0 and what f0 calls too. The frames of the interrupted ones wait on stacks that are no thread's.
 *
 * f0 = serve
 * The result counts. No latency tells anything: most ops are left for others in their middle.
 */
#include "work.h"

#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

enum { COROUTINES = 4, STACK = 256 << 10 };

static ucontext_t contexts[COROUTINES];
static volatile int current;
static volatile uint64_t wrong;

FUNCTION uint64_t part(uint64_t key)
{
    spin_us(20);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = 0;
    for (int i = 0; i < 5; i++)
        sum = sum * 3 + part(key + (uint64_t)i);
    return sum;
}

static uint64_t expected(uint64_t key)
{
    uint64_t sum = 0;
    for (int i = 0; i < 5; i++)
        sum = sum * 3 + mix(key + (uint64_t)i);
    return sum;
}

static void others(void)
{
    sigset_t timer;
    sigemptyset(&timer);
    sigaddset(&timer, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &timer, NULL);
    for (uint64_t key = 0;; key++)
        wrong += serve(key) != expected(key);
}

static void on_timer(int signal)
{
    (void)signal;
    int from = current;
    current = (from + 1) % COROUTINES;
    swapcontext(&contexts[from], &contexts[current]);
}

static uint64_t op(uint64_t key)
{
    return serve(key) + wrong;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 3000);
    for (int i = 1; i < COROUTINES; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = malloc(STACK);
        contexts[i].uc_stack.ss_size = STACK;
        /* swapcontext sets the mask before it switches: no handler may run for this one on the stack of the one before. */
        sigaddset(&contexts[i].uc_sigmask, SIGALRM);
        makecontext(&contexts[i], others, 0);
    }
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &every, NULL);
    return run_ops(run, op);
}
