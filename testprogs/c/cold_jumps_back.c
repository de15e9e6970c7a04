/*
 * A function that is split: at -O2 its unlikely part is moved to `handle_request.cold`, calls the slow callee and
 * jumps back into the function. Without symbols (cold_jumps_back_stripped) the part has no name.
 *
 * f0 = handle_request, whose unlikely part has no name in the stripped program
 * fast peak (4 of 5 ops, ~0.3 ms):  handle_request -> answer    function
 * slow peak (1 of 5 ops, ~2.8 ms):  handle_request -> recover   function
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
    uint64_t sum = answer(key);
    if (__builtin_expect(key % 5 == 4, 0)) {
        sum ^= recover(key) + 1;
        sum ^= sum << 3;
    }
    return mix(sum ^ key) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), handle_request);
}
