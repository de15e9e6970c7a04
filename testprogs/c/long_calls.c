/*
 * Calls that take longer than darc looks before it says that a function does not return. They are made one after the other, at the
 * same place of the stack.
 *
 * `serve` is called again and again, 0.7 s each: it is no function that runs all the time.
 */
#include "work.h"

FUNCTION uint64_t serve(uint64_t key)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = 700 * 1000 * 1000};
    nanosleep(&time, NULL);
    return mix(key);
}

int main(void)
{
    uint64_t sum = 0;
    say_ready();
    do
        sum |= serve(sum);
    while (!stdin_closed());
    return say_checksum(0, 0);
}
