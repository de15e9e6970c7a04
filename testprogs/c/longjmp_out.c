/*
 * Every fifth op leaves three nested frames of f0 at once by longjmp, and with them the callee that
 * they were in: that op has not returned and must not be timed.
 *
 * f0 = transact
 * fast peak (~0.3 ms):              transact -> prepare  function
 *     wrong: transact; transact -> commit
 * slow peak (1 of 5 ops, ~2.5 ms):    transact -> commit   function
 *     wrong: transact; transact -> prepare
 */
#include "work.h"

#include <setjmp.h>

static jmp_buf out;

FUNCTION uint64_t prepare(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t commit(uint64_t key)
{
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION void give_up(uint64_t key)
{
    spin_us(100);
    longjmp(out, (int)(key % 100) + 1);
}

FUNCTION uint64_t transact(uint64_t key, int nested)
{
    if (nested > 0)
        return mix(transact(key, nested - 1)) + 1;
    if (key % 5 == 2)
        give_up(key);
    if (key % 5 == 4)
        return commit(key) + 1;
    return prepare(key) + 1;
}

static uint64_t op(uint64_t key)
{
    int code = setjmp(out);
    if (code != 0)
        return (uint64_t)code;
    return transact(key, key % 5 == 2 ? 2 : 0);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), op);
}
