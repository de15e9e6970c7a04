/*
 * A function that is split: at -O2 its unlikely part is moved to `handle_request.cold`, and the
 * slow callee is called from there.
 *
 * f0 = handle_request
 * fast peak (4 of 5 ops, ~0.3 ms):  handle_request -> answer   function
 *     wrong: handle_request; handle_request -> recover
 * slow peak (1 of 5 ops, ~2.5 ms):    handle_request -> recover  function
 *     wrong: handle_request; handle_request -> answer
 */
#include "work.h"

__attribute__((cold)) FUNCTION uint64_t recover(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

FUNCTION uint64_t answer(uint64_t key)
{
    spin_us(300);
    return mix(key + 1);
}

FUNCTION uint64_t handle_request(uint64_t key)
{
    uint64_t sum = key;
    if (__builtin_expect(key % 5 == 4, 0)) {
        sum = recover(key) + 1;
        sum ^= sum << 3;
        return sum;
    }
    return answer(sum) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), handle_request);
}
