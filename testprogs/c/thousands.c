/*
 * Calls each of the 1500 functions of a library, one_1000 to one_2499 in libthousands.so, once. There is no f0, and there
 * are no peaks to speak of.
 */
#include "work.h"

uint64_t call_all(uint64_t key);

int main(void)
{
    return say_checksum(call_all(1), 0);
}
