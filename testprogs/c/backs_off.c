/*
 * A request that is tried again after a pause, and after a longer one: the pauses are the cause, not what is tried.
 *
 * f0 = request
 * fast peak (4 of 5 ops, ~0.3 ms):       request -> send_once                        function
 *     wrong: request; request -> back_off
 * slow peak (1 of 5 ops, ~3.5 to 9 ms):  request -> back_off -> … -> clock_nanosleep  syscall
 *     wrong: request; request -> send_once; request -> back_off
 */
#include "work.h"

FUNCTION uint64_t send_once(uint64_t key, int is_retry)
{
    spin_us(is_retry ? 20 : 300);
    return mix(key);
}

FUNCTION void back_off(int tried)
{
    nanosleep(&(struct timespec){.tv_nsec = (brisk ? 10000 : 1000000) << tried}, NULL);
    NO_TAIL_CALL();
}

FUNCTION uint64_t request(uint64_t key)
{
    uint64_t answer = send_once(key, 0);
    if (key % 5 == 4)
        for (int tried = 0; tried < 2; tried++) {
            back_off(tried);
            answer ^= send_once(key, 1);
        }
    return answer + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), request);
}
