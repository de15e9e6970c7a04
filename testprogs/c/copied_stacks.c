/*
 * Five coroutines, all on one stack: whoever does not run has its part of the stack copied away, as greenlets have. Each op lets
 * another one run, in the middle of whose f0 the next switch is. The library's name is that of theirs.
 *
 * f0 = serve; the result counts.
 */
#include "work.h"

#include <setjmp.h>

enum { COROUTINES = 5, MOST_STACK = 64 << 10 };

struct coroutine {
    jmp_buf at;
    char *from;
    size_t length;
    char stack[MOST_STACK];
    int has_begun;
};

extern int switches; /* of the library */
static struct coroutine all[COROUTINES];
static struct coroutine *current;
static jmp_buf scheduler;
static char *base; /* above what is copied */
static uint64_t wanted, result;

/* Copies its stack away and goes on with whoever has let it run. */
__attribute__((noinline)) static void yield(void)
{
    char here;
    if (_setjmp(current->at) != 0)
        return;
    current->from = (char *)((uintptr_t)&here & ~(uintptr_t)15) - 512;
    current->length = (size_t)(base - current->from);
    if (current->length > MOST_STACK)
        abort();
    memcpy(current->stack, current->from, current->length);
    switches++;
    _longjmp(scheduler, 1);
}

FUNCTION uint64_t step(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

/* As deep as the key says, so that the parts of different ones overlap. */
FUNCTION uint64_t deep(uint64_t key, uint64_t depth)
{
    uint64_t sum = depth == 0 ? step(key) : deep(key, depth - 1) + 1;
    if (depth == 0) {
        result = sum;
        yield();
    }
    NO_TAIL_CALL();
    return sum;
}

/* A jump, whose measured return would be hidden. */
FUNCTION uint64_t enter(uint64_t key)
{
    return deep(key, key % 4);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = enter(key);
    NO_TAIL_CALL();
    return sum + 1;
}

__attribute__((noinline)) static void body(void)
{
    base = (char *)__builtin_frame_address(0) + 16;
    for (;;)
        serve(wanted);
}

/* From below what it writes. */
static void restore(int deeper);
static void (*volatile below)(int) = restore;

__attribute__((noinline)) static void restore(int deeper)
{
    volatile char room[1024];
    room[0] = (char)deeper;
    if ((char *)room > current->from - 1024)
        below(deeper + 1);
    memcpy(current->from, current->stack, current->length);
    _longjmp(current->at, 1);
}

static uint64_t op(uint64_t key)
{
    current = &all[key % COROUTINES];
    wanted = key;
    if (_setjmp(scheduler) == 0) {
        if (current->has_begun)
            restore(0);
        current->has_begun = 1;
        body();
    }
    return result;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 4000), op);
}
