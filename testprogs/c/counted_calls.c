/*
 * Calls whose number is known, for profiles of many functions at once.
 *
 *   counted_calls THREADS ROUNDS        one burst, then the result
 *   counted_calls wait THREADS ROUNDS   prints "ready"; for every byte on standard input one burst, then
 *                                       "done"; ends when standard input does
 *
 * A burst starts THREADS threads, each of which does ROUNDS rounds and ends. One round makes
 *   1 call  of round_trip
 *   3 calls of inner
 *   1 call  of by_pointer, through a pointer
 *   1 call  of last (a tail call of round_trip at -O2)
 *   6 calls of recurse, one inside the other
 *   1 call  of leaves, which every fourth time does not return: it jumps out (longjmp)
 * ROUNDS is a multiple of 4. There is no f0, and there are no peaks to speak of.
 */
#include "work.h"

#include <pthread.h>
#include <setjmp.h>

static uint64_t rounds;
static __thread jmp_buf out;

FUNCTION uint64_t inner(uint64_t key)
{
    return mix(key) + 1;
}

FUNCTION uint64_t by_pointer(uint64_t key)
{
    return mix(key) + 2;
}

FUNCTION uint64_t last(uint64_t key)
{
    return mix(key ^ 0x55);
}

FUNCTION uint64_t recurse(uint64_t key, int depth)
{
    uint64_t below = depth == 0 ? key : recurse(mix(key), depth - 1);
    NO_TAIL_CALL();
    return below + 1;
}

FUNCTION void leaves(uint64_t key)
{
    if (key % 4 == 3)
        longjmp(out, 1);
    NO_TAIL_CALL();
}

static uint64_t (*volatile pointer)(uint64_t) = by_pointer;

FUNCTION uint64_t round_trip(uint64_t key)
{
    uint64_t sum = inner(key) ^ inner(key + 1) ^ inner(key + 2);
    sum += pointer(sum);
    sum ^= recurse(sum, 5);
    return last(sum);
}

FUNCTION int jumps_out(uint64_t key)
{
    if (setjmp(out) != 0)
        return 1;
    leaves(key);
    return 0;
}

static void *work(void *unused)
{
    (void)unused;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rounds; i++) {
        sum = mix(sum ^ round_trip(i));
        sum += jumps_out(i);
    }
    return (void *)(uintptr_t)(sum | 1);
}

/* What the threads came to: all the same, or zero. */
static uint64_t burst(int count)
{
    pthread_t threads[64];
    uint64_t expected = 0;
    int differs = 0;
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, work, NULL) != 0)
            abort();
    for (int i = 0; i < count; i++) {
        void *sum;
        pthread_join(threads[i], &sum);
        if (i == 0)
            expected = (uintptr_t)sum;
        differs |= (uintptr_t)sum != expected;
    }
    return differs ? 0 : expected;
}

int main(int argc, char **argv)
{
    int waits = argc > 1 && strcmp(argv[1], "wait") == 0;
    if (argc != 3 + waits)
        return 2;
    int threads = atoi(argv[1 + waits]);
    rounds = strtoull(argv[2 + waits], NULL, 10);
    if (threads < 1 || threads > 64)
        return 2;
    uint64_t expected = 0;
    int differs = 0;
    if (waits) {
        char byte;
        say_ready();
        while (read(0, &byte, 1) > 0) {
            uint64_t sum = burst(threads);
            expected = expected == 0 ? sum : expected;
            differs |= sum != expected;
            printf("done\n");
            fflush(stdout);
        }
    } else {
        expected = burst(threads);
        differs = expected == 0;
    }
    return say_checksum(expected, differs);
}
