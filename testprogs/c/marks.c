/*
 * Says itself which part of its run is of interest: what comes before and after is slow for other reasons.
 *
 * f0 = serve, between darc_begin and darc_end
 * peak (~0.3 ms):  serve -> work   function
 * before: serve -> warm_up (~2.5 ms); after: serve -> wind_down (~2.5 ms); neither may be seen
 */
#include "work.h"

#include "../../include/darc.h"

enum phase { BEFORE, BETWEEN, AFTER };

FUNCTION uint64_t warm_up(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

FUNCTION uint64_t work(uint64_t key)
{
    spin_us(300);
    return mix(key + 1);
}

FUNCTION uint64_t wind_down(uint64_t key)
{
    spin_us(2500);
    return mix(key + 2);
}

FUNCTION uint64_t serve(uint64_t key, enum phase phase)
{
    uint64_t result = 0;
    if (phase == BEFORE)
        result = warm_up(key);
    else if (phase == BETWEEN)
        result = work(key);
    else
        result = wind_down(key);
    NO_TAIL_CALL();
    return result;
}

static uint64_t many(uint64_t calls, enum phase phase)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < calls; i++)
        sum += serve(i % PERIOD, phase);
    return sum;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 2000);
    if (run.waits)
        say_ready();
    many(run.ops / 10, BEFORE);
    darc_begin();
    many(run.ops, BETWEEN);
    darc_end();
    many(run.ops / 10, AFTER);
    return say_checksum(mix(42), 0);
}
