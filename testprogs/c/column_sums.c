/*
 * Sums of columns, in a matrix whose rows are a power of two long: all of a column then wants the same few places of the cache.
 * Its copy with longer rows takes as many steps, and less time.
 *
 * f0 = sum_columns
 * short peak (4 of 5 ops, ~0.1 to 1 ms):  sum_columns  function
 *     wrong: sum_columns -> …
 * long peak (1 of 5 ops, ~0.3 to 30 ms):  sum_columns  function
 *     wrong: sum_columns -> …
 */
#include "work.h"

enum { ROWS = 512, COLUMNS = 512, PITCH = 8192, PADDED = 520 };

static uint32_t *padded, *wide;

FUNCTION uint64_t sum_columns(const uint32_t *matrix, size_t pitch, size_t columns)
{
    uint64_t mixed = 0;
    for (size_t column = 0; column < columns; column++) {
        uint64_t sum = 0;
        for (size_t row = 0; row < ROWS; row++)
            sum += matrix[row * pitch + column];
        mixed = mix(mixed ^ sum);
    }
    return mixed + 1;
}

static uint64_t op(uint64_t key)
{
    size_t columns = brisk ? 5 : COLUMNS;
    return key % 5 == 4 ? sum_columns(wide, PITCH, columns) : sum_columns(padded, PADDED, columns);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 2000);
    padded = calloc(sizeof *padded, (size_t)ROWS * PADDED);
    wide = calloc(sizeof *wide, (size_t)ROWS * PITCH);
    if (padded == NULL || wide == NULL)
        return 2;
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t column = 0; column < COLUMNS; column++)
            padded[row * PADDED + column] = wide[row * PITCH + column] = row ^ column;
    return run_ops(run, op);
}
