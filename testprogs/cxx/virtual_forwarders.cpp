/*
 * A virtual function that only passes its call on, as f0, and `std::function`, which does so, too.
 *
 * f0 = Proxy::handle
 * fast peak (4 of 5 ops, ~0.3 ms):  Proxy::handle -> Light::handle                   function
 *     wrong: Proxy::handle; Proxy::handle -> Heavy::handle -> … -> rebuild
 * slow peak (1 of 5 ops, ~2.5 ms):    Proxy::handle -> Heavy::handle -> … -> rebuild   function
 *     wrong: Proxy::handle; Proxy::handle -> Heavy::handle; Proxy::handle -> Light::handle
 */
#include <functional>

#include "work.h"

class Handler {
public:
    virtual ~Handler() {}
    virtual uint64_t handle(uint64_t key) = 0;
};

class Light : public Handler {
public:
    uint64_t handle(uint64_t key) override;
};

class Heavy : public Handler {
public:
    uint64_t handle(uint64_t key) override;

private:
    static uint64_t rebuild(uint64_t key);
    std::function<uint64_t(uint64_t)> task = rebuild;
};

class Proxy : public Handler {
public:
    explicit Proxy(Handler *handler) : handler(handler) {}
    uint64_t handle(uint64_t key) override;

private:
    Handler *handler;
};

FUNCTION uint64_t Light::handle(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t Heavy::rebuild(uint64_t key)
{
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION uint64_t Heavy::handle(uint64_t key)
{
    return task(key);
}

FUNCTION uint64_t Proxy::handle(uint64_t key)
{
    return handler->handle(key);
}

static Handler *volatile handlers[2] = {new Proxy(new Light), new Proxy(new Heavy)};

static uint64_t op(uint64_t key)
{
    return handlers[key % 5 == 4]->handle(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2000), op);
}
