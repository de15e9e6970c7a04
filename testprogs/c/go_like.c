/*
 * Looks like a Go program from outside: it has the section that the Go linker writes. It must be refused.
 *
 * f0 = main
 */
#include "work.h"

__attribute__((section(".go.buildinfo"), used)) static const char build_info[16] = "\xff Go buildinf:";

FUNCTION uint64_t serve(uint64_t key)
{
    return mix(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1), serve);
}
