/*
 * Names that are hard to look up:
 *   area(int), area(double)         overloads
 *   duplicate                       two static functions of that name, in two files
 *   only_inlined                    exists only inlined, into serve and into helper
 *   twice<int>, twice<long>         instances of a template
 *   ns::Outer::inside(int) const    qualified
 *   counter_table                   data
 *   chosen                          an ifunc
 *   never_called                    exists, is never called
 *
 * f0 = serve (or any of them)
 * the only peak (~0.3 ms):  serve -> area(int)  function
 */
#include "work.h"

uint64_t call_other_duplicate(uint64_t key);

uint64_t counter_table[64];

__attribute__((noinline)) static uint64_t duplicate(uint64_t key)
{
    spin_us(20);
    return mix(key + 3);
}

FUNCTION uint64_t area(int side)
{
    spin_us(300);
    return mix((uint64_t)side);
}

FUNCTION uint64_t area(double side)
{
    spin_us(20);
    return mix((uint64_t)side);
}

INLINE uint64_t only_inlined(uint64_t key)
{
    return mix(key * 3);
}

template <typename Number> FUNCTION Number twice(Number number)
{
    __asm__ volatile("" : "+r"(number));
    return number * 2;
}

namespace ns {
class Outer {
public:
    uint64_t inside(int key) const;
};

FUNCTION uint64_t Outer::inside(int key) const
{
    return mix((uint64_t)key);
}
} // namespace ns

FUNCTION uint64_t never_called(uint64_t key)
{
    return mix(key);
}

extern "C" {
static uint64_t plain(uint64_t key)
{
    return key + 1;
}

static uint64_t (*resolve_chosen(void))(uint64_t)
{
    return plain;
}

uint64_t chosen(uint64_t key) __attribute__((ifunc("resolve_chosen")));
}

FUNCTION uint64_t helper(uint64_t key)
{
    return only_inlined(key + 1) + 1;
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = area((int)key) ^ area((double)key) ^ only_inlined(key) ^ helper(key);
    sum ^= duplicate(key) ^ call_other_duplicate(key);
    sum ^= (uint64_t)twice((int)key) ^ (uint64_t)twice((long)key) ^ chosen(key);
    counter_table[key % 64] = ns::Outer().inside((int)key);
    return sum ^ counter_table[key % 64];
}

int main(int argc, char **argv)
{
    if (argc > 50)
        return (int)never_called((uint64_t)argc);
    return run_ops(parse_run(argc, argv, 400), serve);
}
