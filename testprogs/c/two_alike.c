/*
 * Two calls in each op that take as long as each other, of functions that look alike.
 *
 * f0 = serve
 * only peak (every op, ~0.5 ms):  serve -> left -> sum    function
 *                                 serve -> right -> sum   function
 *     wrong: serve; serve -> left; serve -> right
 */
#include "work.h"

FUNCTION uint64_t sum(uint64_t key)
{
    spin_us(250);
    return mix(key);
}

FUNCTION uint64_t left(uint64_t key)
{
    return sum(key) + 1;
}

FUNCTION uint64_t right(uint64_t key)
{
    return sum(key) + 2;
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t found = left(key);
    return (found ^ right(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2000), serve);
}
