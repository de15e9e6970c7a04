// A library for programs in C.
package main

import "C"

//go:noinline
func work(x int) int { return x + 1 }

//export Work
func Work(x C.int) C.int { return C.int(work(int(x))) }

func main() {}
