/* The library of stripped_library.c: it is stripped, and exports one function. */
#include "work.h"

#define HIDDEN __attribute__((visibility("hidden")))

FUNCTION HIDDEN uint64_t hidden_lookup(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION HIDDEN uint64_t hidden_rehash(uint64_t key)
{
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION uint64_t hidden_serve(uint64_t key)
{
    uint64_t found = hidden_lookup(key);
    if (key % 5 == 4)
        found ^= hidden_rehash(key);
    return found;
}
