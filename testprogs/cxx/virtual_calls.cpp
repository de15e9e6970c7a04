/*
 * Virtual calls: one call site, several targets, one fnode per target seen.
 *
 * f0 = render
 * fast peak (4 of 5 ops, ~0.3 ms):  render -> Circle::draw                                      function
 *     wrong: render; render -> Polygon::draw -> Polygon::triangulate
 * slow peak (1 of 5 ops, ~2.5 ms):    render -> Polygon::draw -> Polygon::triangulate             function
 *     wrong: render; render -> Polygon::draw; render -> Circle::draw
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

class Polygon : public Shape {
public:
    uint64_t draw(uint64_t key) override;
    virtual uint64_t triangulate(uint64_t key);
};

FUNCTION uint64_t Circle::draw(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t Polygon::triangulate(uint64_t key)
{
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION uint64_t Polygon::draw(uint64_t key)
{
    return triangulate(key) + 2;
}

FUNCTION uint64_t render(Shape &shape, uint64_t key)
{
    return shape.draw(key) + 1;
}

static Shape *volatile shapes[2] = {new Circle, new Polygon};

static uint64_t op(uint64_t key)
{
    return render(*shapes[key % 5 == 4], key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), op);
}
