/* The library of shared_library.c: f0 and all its callees are exported from a shared object. */
#include "work.h"

FUNCTION uint64_t library_lookup(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t library_rehash(uint64_t key)
{
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION uint64_t library_rebuild(uint64_t key)
{
    return library_rehash(key) + 2;
}

FUNCTION uint64_t library_serve(uint64_t key)
{
    uint64_t found = library_lookup(key);
    if (key % 5 == 4)
        found ^= library_rebuild(key);
    return found;
}
