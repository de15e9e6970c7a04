/*
 * Stacks that grow in pieces (-fsplit-stack): the function that adds a piece goes on one byte behind its return address.
 *
 * f0 = serve
 */
#include "work.h"

FUNCTION uint64_t descend(uint64_t key, int depth)
{
    volatile char room[4000];
    room[0] = (char)key;
    if (depth == 0) {
        spin_us(50);
        return mix(key) + (uint64_t)room[0];
    }
    return descend(key + 1, depth - 1) + (uint64_t)room[0];
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = descend(key, 20);
    return sum ^ descend(key, 1);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1000), serve);
}
