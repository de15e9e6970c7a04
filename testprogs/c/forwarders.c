/*
 * Functions that are nothing but a jump to another one, f0 among them: two bytes through memory (`invoke`), two bytes to
 * a neighbour (`heavy`), five bytes (`enter`). At -O0 they are calls.
 *
 * f0 = enter
 * fast peak (4 of 5 ops, ~0.3 ms):  enter -> invoke -> light             function
 *     wrong: enter; enter -> invoke; enter -> invoke -> heavy -> rebuild
 * slow peak (1 of 5 ops, ~2.5 ms):    enter -> invoke -> heavy -> rebuild  function
 *     wrong: enter; enter -> invoke; enter -> invoke -> heavy; enter -> invoke -> light
 */
#include "work.h"

struct handler {
    uint64_t (*handle)(const struct handler *, uint64_t);
};

FUNCTION static uint64_t light(const struct handler *handler, uint64_t key)
{
    (void)handler;
    spin_us(300);
    return mix(key);
}

FUNCTION static uint64_t rebuild(const struct handler *handler, uint64_t key)
{
    (void)handler;
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION static uint64_t heavy(const struct handler *handler, uint64_t key)
{
    return rebuild(handler, key);
}

FUNCTION uint64_t invoke(const struct handler *handler, uint64_t key)
{
    return handler->handle(handler, key);
}

FUNCTION uint64_t enter(const struct handler *handler, uint64_t key)
{
    return invoke(handler, key);
}

static const struct handler handlers[2] = {{light}, {heavy}};

static uint64_t op(uint64_t key)
{
    return enter(&handlers[key % 5 == 4], key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1600), op);
}
