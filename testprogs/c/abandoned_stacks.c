/*
 * Coroutines that are freed inside f0: each op begins f0 on a stack of its own, leaves it in the middle, and
 * unmaps that stack; the next stack is mapped at the same address. The op in the middle never returns and
 * must not be timed; the one after it, on the main stack, returns as ever.
 *
 * f0 = serve; the result counts.
 */
#include "work.h"

#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 64 << 10 };

static ucontext_t outer, inner;
static volatile uint64_t reached;

FUNCTION uint64_t part(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION void leave(uint64_t key)
{
    reached = mix(reached ^ key);
    swapcontext(&inner, &outer);
    NO_TAIL_CALL();
}

FUNCTION uint64_t serve(uint64_t key, int leaves)
{
    uint64_t sum = part(key);
    if (leaves)
        leave(key);
    return sum ^ part(key + 1);
}

static void on_own_stack(unsigned key)
{
    serve(key, 1);
    abort(); /* nobody ever resumes it */
}

static uint64_t op(uint64_t key)
{
    static char *place;
    char *stack = mmap(place, STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | (place == NULL ? 0 : MAP_FIXED), -1, 0);
    if (stack == MAP_FAILED)
        abort();
    place = stack;
    reached = 0;
    getcontext(&inner);
    inner.uc_stack.ss_sp = stack;
    inner.uc_stack.ss_size = STACK;
    inner.uc_link = NULL;
    makecontext(&inner, (void (*)(void))on_own_stack, 1, (unsigned)key);
    swapcontext(&outer, &inner);
    NO_TAIL_CALL();
    munmap(stack, STACK);
    return reached ^ serve(key + 100, 0);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 400), op);
}
