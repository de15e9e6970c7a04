/* The library of throws_in_library.c: it brings an unwinder of its own, which only it knows (built with -static-libgcc). */
#include "work.h"

extern "C" FUNCTION uint64_t library_part(uint64_t key)
{
    if (key % 5 == 4)
        throw key;
    spin_us(2);
    return mix(key);
}

extern "C" FUNCTION uint64_t library_throws(uint64_t key)
{
    try {
        return library_part(key) + 1;
    } catch (uint64_t thrown) {
        return mix(thrown + 2);
    }
}
