/*
 * f0's callees are in a library and reached through PLT slots that are filled at the first call (-z lazy).
 *
 * f0 = handle
 * fast peak (4 of 5 ops, ~0.3 ms):  handle -> library_lookup                     function
 *     wrong: handle; handle -> library_rebuild -> library_rehash
 * slow peak (1 of 5 ops, ~2.5 ms):  handle -> library_rebuild -> library_rehash  function
 *     wrong: handle; handle -> library_rebuild; handle -> library_lookup
 */
#include "work.h"

uint64_t library_lookup(uint64_t key);
uint64_t library_rebuild(uint64_t key);

FUNCTION uint64_t handle(uint64_t key)
{
    uint64_t found = key % 5 == 4 ? library_rebuild(key) : library_lookup(key);
    return found + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1600), handle);
}
