/*
 * How long an op takes depends on what it is asked for: large requests are copied piece by piece.
 *
 * f0: reply(connection, size, flags)
 * common peak (4 of 5 ops, ~0.1 ms):  reply           function   size = 512
 * slow peak (1 of 5 ops, ~1 ms):      reply -> split  function   size from 65536 on
 * arg2 (size) tells the peaks apart; the others do not.
 */
#include "work.h"

FUNCTION uint64_t split(uint64_t size)
{
    spin_us(1000);
    return mix(size);
}

FUNCTION uint64_t reply(uint64_t connection, uint64_t size, uint64_t flags)
{
    spin_us(100);
    uint64_t result = mix(connection + size + flags);
    if (size > 4096)
        result ^= split(size);
    NO_TAIL_CALL();
    return result;
}

static uint64_t op(uint64_t i)
{
    uint64_t size = i % 5 == 4 ? 65536 + i * 100 : 512;
    /* The connection and the flags have nothing to do with it. */
    return reply(3 + i % 2, size, i % 4 < 2);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1000), op);
}
