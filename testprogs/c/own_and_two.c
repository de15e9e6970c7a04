/*
 * Two fifths of the time are f0's own, three tenths each are those of two callees: all three are causes.
 *
 * f0 = serve
 * only peak (every op, ~1 ms):  serve            function
 *                               serve -> parse   function
 *                               serve -> render  function
 *     wrong: serve -> check
 */
#include "work.h"

FUNCTION uint64_t parse(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t render(uint64_t key)
{
    spin_us(300);
    return mix(key + 1);
}

FUNCTION uint64_t check(uint64_t key)
{
    spin_us(5);
    return mix(key + 2);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = parse(key);
    spin_us(400);
    sum ^= check(key);
    return (sum ^ render(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), serve);
}
