/* Exceptions that begin and end in a library, through calls that are measured. */
#include "work.h"

uint64_t library_throws(uint64_t key);

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 5000), library_throws);
}
