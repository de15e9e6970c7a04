/* The second half of names.cpp: functions and a static of the same name. */
#include "work.h"

__attribute__((noinline)) static uint64_t duplicate(uint64_t key)
{
    spin_us(40);
    return mix(key + 5);
}

uint64_t call_other_duplicate(uint64_t key)
{
    return duplicate(key) + 1;
}
