/* The library of thousands.c: 1500 functions, one_1000 to one_2499, that differ in what they add. */
#include "work.h"

#define ONE(n)                          \
    uint64_t one_##n(uint64_t key);     \
    FUNCTION uint64_t one_##n(uint64_t key) \
    {                                   \
        return mix(key + n);            \
    }
#define NAME(n) one_##n,

#define TEN(do, n) do(n##0) do(n##1) do(n##2) do(n##3) do(n##4) do(n##5) do(n##6) do(n##7) do(n##8) do(n##9)
#define HUNDRED(do, n)                                                                       \
    TEN(do, n##0) TEN(do, n##1) TEN(do, n##2) TEN(do, n##3) TEN(do, n##4)                    \
    TEN(do, n##5) TEN(do, n##6) TEN(do, n##7) TEN(do, n##8) TEN(do, n##9)
#define ALL(do)                                                                              \
    HUNDRED(do, 10) HUNDRED(do, 11) HUNDRED(do, 12) HUNDRED(do, 13) HUNDRED(do, 14)          \
    HUNDRED(do, 15) HUNDRED(do, 16) HUNDRED(do, 17) HUNDRED(do, 18) HUNDRED(do, 19)          \
    HUNDRED(do, 20) HUNDRED(do, 21) HUNDRED(do, 22) HUNDRED(do, 23) HUNDRED(do, 24)

ALL(ONE)

static uint64_t (*const all[])(uint64_t) = {ALL(NAME)};

uint64_t call_all(uint64_t key);
FUNCTION uint64_t call_all(uint64_t key)
{
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        key = all[i](key);
    return key;
}
