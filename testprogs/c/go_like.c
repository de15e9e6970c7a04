/*
 * Looks like a Go program from outside: it has the section that the Go linker writes. It must be refused.
 *
 * f0 = main
 */
#include "work.h"

__attribute__((section(".go.buildinfo"), used)) static const char build_info[16] = "\xff Go buildinf:";

int main(void)
{
    return 0;
}
