/*
 * std::visit: which function is called depends on what the variant holds, by a table of functions that the compiler makes.
 *
 * f0 = handle
 * fast peak (4 of 5 ops, ~0.3 ms):  handle -> … -> look_up          function
 *     wrong: handle; handle -> … -> compile
 * slow peak (1 of 5 ops, ~2.5 ms):  handle -> … -> compile -> link  function
 *     wrong: handle; handle -> … -> compile; handle -> … -> look_up
 */
#include "work.h"

#include <variant>

struct Query {
    uint64_t key;
};
struct Update {
    uint64_t key;
};
struct Script {
    uint64_t key;
};

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t link(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

FUNCTION uint64_t compile(uint64_t key)
{
    return link(key) + 1;
}

struct Visitor {
    FUNCTION uint64_t operator()(const Query &it) const { return look_up(it.key) + 1; }
    FUNCTION uint64_t operator()(const Update &it) const { return look_up(it.key + 1) + 2; }
    FUNCTION uint64_t operator()(const Script &it) const { return compile(it.key) + 3; }
};

using Request = std::variant<Query, Update, Script>;

FUNCTION uint64_t handle(const Request &request)
{
    return std::visit(Visitor(), request) + 1;
}

static uint64_t op(uint64_t key)
{
    switch (key % 5) {
    case 4:
        return handle(Script{key});
    case 0:
        return handle(Update{key});
    default:
        return handle(Query{key});
    }
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), op);
}
