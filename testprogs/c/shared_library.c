/*
 * f0 in a shared library that is loaded at the start; its callees are reached through the PLT.
 *
 * f0 = library_serve
 * fast peak (4 of 5 ops, ~0.3 ms):  library_serve -> library_lookup                     function
 *     wrong: library_serve; library_serve -> library_rebuild -> library_rehash
 * slow peak (1 of 5 ops, ~2.5 ms):    library_serve -> library_rebuild -> library_rehash  function
 *     wrong: library_serve; library_serve -> library_rebuild; library_serve -> library_lookup
 */
#include "work.h"

uint64_t library_serve(uint64_t key);

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1600), library_serve);
}
