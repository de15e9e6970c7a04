/*
 * A function that returns before what it read has come: nothing but a branch depends on it, which the processor guesses. The time
 * is its own, not that of what is called behind it.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.05 ms):       serve -> look    function
 *     wrong: serve; serve -> is_known; serve -> note
 * slow peak (1 of 5 ops, ~0.1 to 9 ms):   serve -> is_known  function
 *     wrong: serve; serve -> look; serve -> note
 */
#include "work.h"

enum { COUNT = 1 << 24, STEPS = 14, KEYS = 200 };
#include "circle.h"

static char notes[64];

FUNCTION uint64_t look(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION int is_known(uint64_t key)
{
    uint32_t at = (uint32_t)mix(key) % COUNT;
    for (int i = 0; i < STEPS; i++)
        at = next[at];
    return at != 0;
}

FUNCTION void note(uint64_t key)
{
    char digits[24];
    int count = 0, at = 0;
    do
        digits[count++] = '0' + key % 10;
    while (key /= 10);
    while (count > 0)
        notes[at++ % 64] = digits[--count];
    NO_TAIL_CALL();
}

/* Others every time: what was read is in no cache any more. */
static uint64_t seen;

FUNCTION uint64_t serve(uint64_t key)
{
    if (key % 5 != 4)
        return look(key) + 1;
    for (int i = 0; i < (brisk ? 2 : KEYS); i++)
        if (is_known(++seen))
            note(key + i);
    return mix(key + 1) + 1;
}

int main(int argc, char **argv)
{
    if (!make_circle())
        return 2;
    return run_ops(parse_run(argc, argv, 4000), serve);
}
