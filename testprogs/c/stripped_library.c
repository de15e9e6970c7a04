/*
 * A library without symbols: what it exports has names, what it calls has none.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> hidden_serve -> …  function
 *     wrong: serve; serve -> hidden_serve
 * slow peak (1 of 5 ops, ~2.5 ms):  serve -> hidden_serve -> …  function
 *     wrong: serve; serve -> hidden_serve
 */
#include "work.h"

uint64_t hidden_serve(uint64_t key);

FUNCTION uint64_t serve(uint64_t key)
{
    return hidden_serve(key) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), serve);
}
