/* The library of ends_in_library.c: it has a marker of its own, which the program's does not replace (-Bsymbolic). */
#include <stdint.h>

#include "../../include/darc.h"

void library_ends(void)
{
    darc_end();
}
