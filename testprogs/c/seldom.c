/*
 * One op of two hundred takes thirty times as long as the others.
 *
 * f0 = serve
 * usual peak (199 of 200 ops, ~50 us):  serve -> look_up            function
 * seldom peak (1 of 200 ops, ~1.5 ms):  serve -> renew -> rebuild   function
 *     wrong: serve; serve -> look_up; serve -> renew
 */
#include "work.h"

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION uint64_t rebuild(uint64_t key)
{
    spin_us(1500);
    return mix(key);
}

FUNCTION uint64_t renew(uint64_t key)
{
    key = rebuild(key);
    NO_TAIL_CALL();
    return key;
}

FUNCTION uint64_t serve(uint64_t key)
{
    static uint64_t turn;
    key = turn++ % 200 == 137 ? renew(key) : look_up(key);
    return key + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 120000), serve);
}
