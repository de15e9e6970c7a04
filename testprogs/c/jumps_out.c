/*
 * Every fifth op leaves the calls that it is in by longjmp, over three functions, back to f0, which goes on. The op
 * returns, and the calls that were left are where its time is.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):   serve -> look                          function
 * slow peak (1 of 5 ops, ~2.8 ms):   serve -> attempt -> descend -> fail    function
 *     wrong: serve; serve -> recover; serve -> look
 */
#include "work.h"

#include <setjmp.h>

static jmp_buf out;

FUNCTION uint64_t look(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t recover(uint64_t key)
{
    spin_us(100);
    return mix(key + 1);
}

FUNCTION void fail(uint64_t key)
{
    spin_us(2500);
    longjmp(out, (int)(key % 100) + 1);
}

FUNCTION uint64_t descend(uint64_t key)
{
    if (key % 5 == 4)
        fail(key);
    return mix(key) + 1;
}

FUNCTION uint64_t attempt(uint64_t key)
{
    return descend(key) ^ 2;
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = look(key);
    volatile uint64_t so_far = sum;
    int code = setjmp(out);
    if (code == 0)
        return attempt(key) + so_far;
    return recover(key) + so_far + (uint64_t)code;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1800), serve);
}
