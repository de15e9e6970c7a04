/*
 * swapcontext inside f0: an op that begins on one stack is left, f0 runs on another stack, then the
 * first is resumed; in every twentieth op it is resumed by another thread.
 *
 * f0 = serve
 * The result counts; ops that moved between stacks may be measured or counted as ended otherwise.
 */
#include "work.h"

#include <pthread.h>
#include <semaphore.h>
#include <ucontext.h>

enum { STACK = 256 << 10 };

static ucontext_t outer, inner;
static char *stack;
static volatile uint64_t inner_key, inner_result;
static volatile int inner_ended;
static sem_t resume, resumed;

/* What is left in the middle: noinline, so that nothing of the thread is kept across. */
FUNCTION void yield(void)
{
    swapcontext(&inner, &outer);
    NO_TAIL_CALL();
}

FUNCTION void continue_inner(void)
{
    swapcontext(&outer, &inner);
    NO_TAIL_CALL();
}

FUNCTION uint64_t part(uint64_t key)
{
    spin_us(100);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key, int yields)
{
    uint64_t sum = part(key);
    if (yields)
        yield();
    return sum ^ part(key + 1);
}

static void on_other_stack(void)
{
    inner_result = serve(inner_key, 1);
    inner_ended = 1;
}

static void *other_thread(void *unused)
{
    (void)unused;
    for (;;) {
        while (sem_wait(&resume) != 0)
            ;
        continue_inner();
        sem_post(&resumed);
    }
    return NULL;
}

static uint64_t op(uint64_t key)
{
    getcontext(&inner);
    inner.uc_stack.ss_sp = stack;
    inner.uc_stack.ss_size = STACK;
    inner.uc_link = &outer;
    inner_key = key;
    inner_ended = 0;
    makecontext(&inner, on_other_stack, 0);
    continue_inner(); /* enters f0 on the other stack, comes back from its middle */
    uint64_t between = serve(key + 100, 0);
    if (key == 19) {
        sem_post(&resume);
        while (sem_wait(&resumed) != 0)
            ;
    } else {
        continue_inner(); /* lets it end */
    }
    return between ^ inner_result ^ (uint64_t)inner_ended;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 400);
    stack = malloc(STACK);
    sem_init(&resume, 0, 0);
    sem_init(&resumed, 0, 0);
    pthread_t thread;
    if (stack == NULL || pthread_create(&thread, NULL, other_thread, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
