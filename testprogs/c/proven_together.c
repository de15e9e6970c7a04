/*
 * Ops of `serve` that ask several threads to call the same function.
 *
 * One of two takes 1 ms: three threads, one after the other, each in turn sleep for 0.2 ms. The other takes 3 ms: four threads
 * side by side, each in part, which sleeps for 3 ms; the op waits for all of them, so that longer calls of part make it longer once.
 */
#include "helper.h"

enum { PARTS = 4, TURNS = 3 };

FUNCTION void part(void)
{
    sleep_us(3000);
    NO_TAIL_CALL();
}

FUNCTION void turn(void)
{
    sleep_us(200);
    NO_TAIL_CALL();
}

static struct helper parts[PARTS] = {HELPER(part), HELPER(part), HELPER(part), HELPER(part)};
static struct helper turns[TURNS] = {HELPER(turn), HELPER(turn), HELPER(turn)};

FUNCTION uint64_t serve(uint64_t key)
{
    if (key % 2 == 0) {
        for (size_t i = 0; i < TURNS; i++) {
            ask(&turns[i]);
            wait_for(&turns[i]);
        }
    } else {
        for (size_t i = 0; i < PARTS; i++)
            ask(&parts[i]);
        for (size_t i = 0; i < PARTS; i++)
            wait_for(&parts[i]);
    }
    return mix(key);
}

int main(int argc, char **argv)
{
    struct run of = parse_run(argc, argv, 1000);
    for (size_t i = 0; i < PARTS; i++)
        start(run, &parts[i]);
    for (size_t i = 0; i < TURNS; i++)
        start(run, &turns[i]);
    return run_ops(of, serve);
}
