/* Bears the name of the library that copies stacks in Python programs. */
int switches;
