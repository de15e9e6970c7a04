/*
 * Indirect calls through a register and through memory: one fnode per target that is seen.
 *
 * f0 = dispatch
 * fast peak (3 of 5 ops, ~0.3 ms):   dispatch -> invoke -> handle_read             function
 *     wrong: dispatch; dispatch -> invoke; dispatch -> invoke -> handle_write -> commit
 * slow peak (2 of 5 ops, ~2.5 ms):     dispatch -> invoke -> handle_write -> commit  function
 *     wrong: dispatch; dispatch -> invoke; dispatch -> invoke -> handle_write; dispatch -> invoke -> handle_read
 */
#include "work.h"

struct driver {
    const char *name;
    uint64_t (*handle)(struct driver *, uint64_t);
};

FUNCTION uint64_t commit(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

FUNCTION uint64_t handle_read(struct driver *driver, uint64_t key)
{
    spin_us(300);
    return mix(key + (uint64_t)driver->name[0]);
}

FUNCTION uint64_t handle_write(struct driver *driver, uint64_t key)
{
    uint64_t (*volatile by_register)(uint64_t) = commit;
    return by_register(key) + (uint64_t)driver->name[0];
}

FUNCTION uint64_t invoke(struct driver *driver, uint64_t key)
{
    return driver->handle(driver, key) + 1;
}

static struct driver drivers[2] = {{"reader", handle_read}, {"writer", handle_write}};

FUNCTION uint64_t dispatch(uint64_t key)
{
    return invoke(&drivers[key % 5 >= 3], key) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), dispatch);
}
