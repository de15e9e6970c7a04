/*
 * A switch that is compiled to a jump table: calls in its cases are call sites of the function.
 *
 * f0 = interpret
 * fast peak (4 of 5 ops, ~0.3 ms):  interpret -> execute          function
 *     wrong: interpret; interpret -> collect_garbage
 * slow peak (1 of 5 ops, ~2.5 ms):    interpret -> collect_garbage  function
 *     wrong: interpret; interpret -> execute
 */
#include "work.h"

FUNCTION uint64_t execute(uint64_t operand)
{
    spin_us(300);
    return mix(operand);
}

FUNCTION uint64_t collect_garbage(uint64_t operand)
{
    spin_us(2500);
    return mix(operand + 1);
}

FUNCTION uint64_t interpret(uint64_t operation)
{
    uint64_t value = operation;
    switch (operation % 10) {
    case 0: value += 11; break;
    case 1: value ^= 0x55; break;
    case 2: value *= 3; break;
    case 3: value = ~value; break;
    case 4: value = collect_garbage(value); return value + 1;
    case 5: value -= 9; break;
    case 6: value <<= 4; break;
    case 7: value |= 0x1000; break;
    case 8: value = mix(value); break;
    case 9: value = collect_garbage(value + 3); return value + 1;
    }
    return execute(value) + 1;
}

static uint64_t op(uint64_t key)
{
    return interpret(key % 10 == 9 ? 4 : key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), op);
}
