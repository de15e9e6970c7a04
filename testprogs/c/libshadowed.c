/* Has a function of a name that the library before it has, too: this one is never called. */
#include "work.h"

FUNCTION uint64_t library_rebuild(uint64_t key)
{
    return mix(key);
}
