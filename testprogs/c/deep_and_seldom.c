/*
 * One op of a hundred takes long, fourteen calls below f0: through pointers, by jumps, in loops. There are eighty of them: the stacks of the
 * first ones have to tell where the others are looked into.
 *
 * f0 = serve
 * usual peak (99 of 100 ops, ~150 us):   serve -> look_up  function
 * seldom peak (1 of 100 ops, ~15 ms):    serve -> plan -> choose -> open_table -> open_index -> walk -> visit -> descend -> load -> decode -> expand -> check -> verify -> digest  function
 *     wrong: serve; serve -> look_up; serve -> plan; serve -> plan -> choose
 */
#include "work.h"

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_us(150);
    return mix(key);
}

FUNCTION uint64_t digest(uint64_t key)
{
    spin_us(15000);
    return mix(key);
}

#define LAYER(name, below)                                                                                             \
    FUNCTION uint64_t name(uint64_t key)                                                                               \
    {                                                                                                                  \
        key = below(key);                                                                                              \
        NO_TAIL_CALL();                                                                                                \
        return key;                                                                                                    \
    }

LAYER(verify, digest)
LAYER(check, verify)
LAYER(expand, check)
static uint64_t (*volatile decoder)(uint64_t) = expand;
LAYER(decode, decoder)
LAYER(load, decode)

/* A jump. */
FUNCTION uint64_t descend(uint64_t key)
{
    return load(key);
}

static uint64_t (*volatile visitor)(uint64_t) = descend;

FUNCTION uint64_t visit(uint64_t key)
{
    for (int i = 0; i < 2; i++)
        key = i ? visitor(key) : key;
    NO_TAIL_CALL();
    return key;
}

LAYER(walk, visit)
LAYER(open_index, walk)
LAYER(open_table, open_index)
static uint64_t (*volatile chosen)(uint64_t) = open_table;
LAYER(choose, chosen)
LAYER(plan, choose)

FUNCTION uint64_t serve(uint64_t key)
{
    static uint64_t turn;
    key = turn++ % 100 == 37 ? plan(key) : look_up(key);
    return key + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 8000), serve);
}
