/*
 * A function with a jump table makes virtual calls and calls through a pointer in its cases. The table's index is a constant, or
 * what a call returns (clang makes one table of it, gcc none).
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> Circle::draw   function
 *     wrong: serve; serve -> classify
 * slow peak (1 of 5 ops, ~2.5 ms):  serve -> collect        function
 *     wrong: serve; serve -> classify; serve -> Circle::draw
 */
#include "work.h"

class Shape {
public:
    virtual ~Shape() {}
    virtual uint64_t draw(uint64_t key) = 0;
};

class Circle : public Shape {
public:
    uint64_t draw(uint64_t key) override;
};

FUNCTION uint64_t Circle::draw(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t collect(uint64_t key)
{
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION unsigned classify(uint64_t key)
{
    NO_TAIL_CALL();
    return key == 9 ? 4 : 5;
}

FUNCTION uint64_t weigh(uint64_t key)
{
    NO_TAIL_CALL();
    return mix(key + 2);
}

static Shape *volatile shape = new Circle;
static uint64_t (*volatile handler)(uint64_t) = collect;

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = key;
    unsigned code = 0;
    if (key % 5 == 4)
        code = classify(key);
    switch (code) {
    case 0: sum += shape->draw(key); break;
    case 1: sum ^= 0x55; sum += handler(sum); break;
    case 2: sum *= 3; break;
    case 3: sum = ~sum; sum += shape->draw(sum); break;
    /* The next case begins a few bytes behind the call. */
    case 4: sum += weigh(key); /* fall through */
    case 5: sum += handler(key) + 7; break;
    case 6: sum |= 0x1000; break;
    }
    return sum + 1;
}

static uint64_t op(uint64_t key)
{
    return serve(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1800), op);
}
