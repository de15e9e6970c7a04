/*
 * A text that is put together of pieces: for each of them its end is looked for from the start again.
 *
 * f0 = render
 * fast peak (4 of 5 ops, ~0.05 ms):       render -> fill_in                   function
 *     wrong: render; render -> put_together
 * slow peak (1 of 5 ops, ~0.4 to 10 ms):  render -> put_together -> find_end  function
 *     wrong: render; render -> fill_in; render -> put_together
 */
#include "work.h"

enum { PIECES = 40, LENGTH = 4000 };

static char text[PIECES * LENGTH + 1];

FUNCTION uint64_t fill_in(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION size_t find_end(void)
{
    size_t at = 0;
    while (*(volatile char *)&text[at] != '\0')
        at++;
    return at;
}

FUNCTION uint64_t put_together(uint64_t key)
{
    text[0] = '\0';
    for (int piece = 0; piece < (brisk ? 4 : PIECES); piece++) {
        char *end = text + find_end();
        memset(end, 'a' + piece % 26, LENGTH);
        end[LENGTH] = '\0';
    }
    return mix(key) ^ (uint64_t)text[LENGTH];
}

FUNCTION uint64_t render(uint64_t key)
{
    return (key % 5 == 4 ? put_together(key) : fill_in(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1500), render);
}
