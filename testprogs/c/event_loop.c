/*
 * A server's loop, which never returns: it waits for events and handles what has come. Every fifth
 * request makes it rebuild its index.
 *
 * f0 = main (or serve): it runs all the time, so its time is divided
 *   main -> serve -> epoll_wait   about four fifths of the time: waiting
 *   main -> serve -> handle       the rest; an f0 of its own:
 *     common peak (4 of 5 ops, ~60 us):  handle              function
 *     slow peak (1 of 5 ops, ~1 ms):     handle -> rebuild   function
 */
#include "work.h"

#include <sys/epoll.h>

static int epoll;

FUNCTION uint64_t rebuild(uint64_t request)
{
    spin_us(1000);
    return mix(request);
}

FUNCTION uint64_t handle(uint64_t request)
{
    spin_us(60);
    uint64_t result = mix(request + 1);
    if (request % 5 == 4)
        result ^= rebuild(request);
    NO_TAIL_CALL();
    return result;
}

FUNCTION int serve(struct run run)
{
    uint64_t expected = 0;
    int differs = 0;
    for (uint64_t done = 0; done < run.ops; done += PERIOD) {
        uint64_t sum = 0;
        for (uint64_t i = 0; i < PERIOD; i++) {
            struct epoll_event event;
            epoll_wait(epoll, &event, 1, 1);
            sum = mix(sum ^ handle(i) ^ i);
        }
        if (done == 0)
            expected = sum;
        differs |= sum != expected;
        if (run.waits && stdin_closed())
            break;
    }
    return say_checksum(expected, differs);
}

#ifdef MAIN_JUMPS
/* At -O2 main is a jump to this, and on no stack. */
FUNCTION int run_loop(int argc, char **argv)
#else
int main(int argc, char **argv)
#endif
{
    struct run run = parse_run(argc, argv, 4000);
    epoll = epoll_create1(0);
    if (run.waits)
        say_ready();
    int differs = serve(run);
    NO_TAIL_CALL();
    return differs;
}

#ifdef MAIN_JUMPS
int main(int argc, char **argv)
{
    return run_loop(argc, argv);
}
#endif
