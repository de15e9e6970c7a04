/* The library of shared_library.c: f0 and all its callees are exported from a shared object. */
#include "work.h"

FUNCTION uint64_t library_lookup(uint64_t key, uint64_t rounds)
{
    spin_rounds(300 * rounds);
    return mix(key);
}

FUNCTION uint64_t library_rehash(uint64_t key, uint64_t rounds)
{
    spin_rounds(3000 * rounds);
    return mix(key + 1);
}

FUNCTION uint64_t library_rebuild(uint64_t key, uint64_t rounds)
{
    return library_rehash(key, rounds) + 2;
}

FUNCTION uint64_t library_serve(uint64_t key, uint64_t rounds)
{
    uint64_t found = library_lookup(key, rounds);
    if (key % 5 == 4)
        found ^= library_rebuild(key, rounds);
    return found;
}
