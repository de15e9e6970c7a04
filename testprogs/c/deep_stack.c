/*
 * A loop below a thousand frames of a function that calls itself (or as many as DEPTH in the environment says), each a quarter of a
 * kilobyte of stack: where it began is far away.
 *
 * f0 = (of what a process runs, its busiest threads'): main, which runs all the time, so its time is divided
 *   main -> descend -> … -> loop -> serve   what there is to analyse
 */
#include "work.h"

static struct run run;
static uint64_t result;

FUNCTION uint64_t serve(uint64_t key)
{
    spin_us(key % 5 == 4 ? 2500 : 300);
    return mix(key);
}

FUNCTION void loop(void)
{
    for (uint64_t done = 0; done < run.ops; done += PERIOD) {
        result = one_period(serve);
        if (run.waits && stdin_closed())
            break;
    }
}

FUNCTION void descend(int left)
{
    char room[256];
    __asm__ volatile("" : : "r"(room) : "memory");
    if (left == 0)
        loop();
    else
        descend(left - 1);
    NO_TAIL_CALL();
}

int main(int argc, char **argv)
{
    run = parse_run(argc, argv, 20);
    if (run.waits)
        say_ready();
    const char *depth = getenv("DEPTH");
    descend(depth == NULL ? 1000 : atoi(depth));
    return say_checksum(result, 0);
}
